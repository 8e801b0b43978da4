/* Order statistics: what reports call medians and quartiles. */
#ifndef WEFT_CORE_SORTED_H
#define WEFT_CORE_SORTED_H

#include <stddef.h>

/* Rising. */
void weft_sort(double *values, size_t count);
/* Between two neighbours where the place is no whole number; share 0.5: the median. count >= 1. */
double weft_quantile(const double *sorted, size_t count, double share);

#endif
