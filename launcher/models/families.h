/* The families of weft and of a program. */
#ifndef WEFT_LAUNCHER_MODELS_FAMILIES_H
#define WEFT_LAUNCHER_MODELS_FAMILIES_H

#include <weft/application.h>

/* The family at `index`, a program's own before Weft's; NULL behind the last. application NULL: it
 * has none. */
const weft_family *weft_family_at(const weft_application *application, size_t index);

#endif
