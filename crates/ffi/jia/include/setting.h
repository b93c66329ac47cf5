/*
 * setting.h: some programs include it by name. The settings themselves are environment variables and options of
 * `ferroce dsm run`.
 */
#ifndef FERROCE_JIA_SETTING_H
#define FERROCE_JIA_SETTING_H

#include <stdbool.h>

#endif
