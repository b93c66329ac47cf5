/*
 * setting.h: some programs include it. The settings are environment variables and options of `ferroce dsm run`.
 */
#ifndef FERROCE_JIA_SETTING_H
#define FERROCE_JIA_SETTING_H

#include <stdbool.h>

#endif
