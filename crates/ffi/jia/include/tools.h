/*
 * tools.h: the clock that programs take from here.
 */
#ifndef FERROCE_JIA_TOOLS_H
#define FERROCE_JIA_TOOLS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Nanoseconds of a clock that only goes forward. */
unsigned long jia_current_time(void);
double jia_clock(void);

#ifdef __cplusplus
}
#endif

#endif
