/*
 * tools.h: clocks, for programs that include this file.
 */
#ifndef FERROCE_JIA_TOOLS_H
#define FERROCE_JIA_TOOLS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Nanoseconds of the monotonic clock. */
unsigned long jia_current_time(void);
double jia_clock(void);

#ifdef __cplusplus
}
#endif

#endif
