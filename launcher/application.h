/* What a program gave to weft_application_main. Private to launcher/. */
#ifndef WEFT_LAUNCHER_APPLICATION_H
#define WEFT_LAUNCHER_APPLICATION_H

#include <weft/application.h>

/* The application as this library knows it. Errors: WEFT_CONFIG: a size that is none, a section
 * that is not the program's own, a row that points outside the options. */
weft_status weft_application_take(const weft_application *given,
                                  weft_application *out) WEFT_CHECKED;

#endif
