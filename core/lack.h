/* Errors about a figure that a cluster's file does not give and a plan takes. No other config would
 * do without it for certain, so who looks at many passes such an error on where another refusal is
 * one candidate less. The mark is the record's key: "cluster", which is no key of a config. */
#ifndef WEFT_CORE_LACK_H
#define WEFT_CORE_LACK_H

#include <weft/status.h>

/* Marks this thread's record; returns `status`. */
weft_status weft_lack_mark(weft_status status);
bool weft_lack_is(const weft_error *error);
/* Puts the file's path before the text of a marked record, once. Returns `status`. */
weft_status weft_lack_name_file(weft_status status, const char *path);

#endif
