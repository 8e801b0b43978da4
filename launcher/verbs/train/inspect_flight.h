/* weft inspect --flight: the ranks' flight records beside each other. */
#ifndef WEFT_LAUNCHER_VERBS_TRAIN_INSPECT_FLIGHT_H
#define WEFT_LAUNCHER_VERBS_TRAIN_INSPECT_FLIGHT_H

#include <stdbool.h>
#include <stdio.h>

#include <weft/status.h>

/* Reads RUN/flight and prints the verdict, a row a rank, and a row a group: what each rank has
 * begun there, who is behind, and the first collective whose kind, type or size differs. Errors:
 * WEFT_FILE (there is none, or one is damaged), WEFT_MEMORY. */
weft_status weft_inspect_flight(const char *run, bool json, FILE *out) WEFT_CHECKED;

#endif
