/* The application that a program gives to weft_application_main. Private to launcher/. */
#ifndef WEFT_LAUNCHER_APPLICATION_H
#define WEFT_LAUNCHER_APPLICATION_H

#include <weft/application.h>

/* Copies the application as far as this library knows its fields. Errors: WEFT_CONFIG: a wrong
 * size, a section of Weft's own, a row that points outside the options. */
weft_status weft_application_take(const weft_application *given,
                                  weft_application *out) WEFT_CHECKED;

#endif
