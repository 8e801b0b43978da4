/* Log lines on stderr: `time rank level message`. Info goes out from rank 0 alone, warnings and
 * errors from every rank, debug and trace from every rank when the level asks for them. Metrics
 * are files, not logs. Any thread may log; a line is written with one write. */
#ifndef WEFT_CORE_LOG_H
#define WEFT_CORE_LOG_H

#include <weft/status.h>

typedef enum weft_log_level {
    WEFT_LOG_ERROR,
    WEFT_LOG_WARN,
    WEFT_LOG_INFO,
    WEFT_LOG_DEBUG,
    WEFT_LOG_TRACE,
} weft_log_level;

void weft_log_set_level(weft_log_level level); /* default: info */
void weft_log_set_rank(int rank);              /* default: 0 */
int weft_log_rank(void);
/* Parses "error", "warn", ...; WEFT_CONFIG otherwise. */
weft_status weft_log_level_parse(const char *text, weft_log_level *out) WEFT_CHECKED;

void weft_log(weft_log_level level, const char *format, ...) WEFT_PRINTF(2, 3);
/* Prints this thread's error record once, as an error: text, then frames at debug level. */
void weft_log_error_record(void);

#endif
