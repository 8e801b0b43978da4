/* Log lines on stderr: `time rank level message`. Only rank 0 writes info; every rank writes
 * warnings and errors, and debug and trace where the level asks for them. Metrics are files, not
 * logs. Any thread may log. A line goes out in one write; above 2,047 bytes it is cut. */
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

void weft_log(weft_log_level level, const char *format, ...) WEFT_PRINTF(2, 3);
/* Logs this thread's error record: its text as an error, then its frames at debug level. */
void weft_log_error_record(void);

#endif
