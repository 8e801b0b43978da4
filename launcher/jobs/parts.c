/* What the texts of several launchers are made of. */
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "launcher/jobs/internal.h"

static bool is_plain(const char *text)
{
    static const char marks[] = "_-./=:,+@%";
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c >= 128 || (!isalnum(*c) && !strchr(marks, *c)))
            return false;
    return *text != '\0';
}

bool weft_job_has_control(const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c < 32 || *c == 127)
            return true;
    return false;
}

/* On one line whatever it holds: what stands first on a line might be read as a comment's, and
 * Slurm takes orders from comments. */
static void print_escaped(const char *text, FILE *out)
{
    fputs("$'", out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c == '\'' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 32 || *c == 127)
            fprintf(out, "\\%03o", *c);
        else
            fputc(*c, out);
    fputc('\'', out);
}

void weft_shell_word(const char *text, FILE *out)
{
    if (is_plain(text)) {
        fputs(text, out);
        return;
    }
    if (weft_job_has_control(text)) {
        print_escaped(text, out);
        return;
    }
    fputc('\'', out);
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fputc(*text, out);
    fputc('\'', out);
}

void weft_yaml_text(const char *text, bool expands, FILE *out)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c == '\n')
            fputs("\\n", out);
        else if (*c < 32 || *c == 127)
            fprintf(out, "\\x%02X", *c);
        else if (*c == '$' && expands)
            fputs("$$", out);
        else
            fputc(*c, out);
    fputc('"', out);
}

/* The bytes of the code point at `c`, which is 0 at the end; 0: none is there. */
static int code_point(const unsigned char *c, unsigned *out)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    int bytes = *c < 0x80 ? 1 : *c >> 5 == 6 ? 2 : *c >> 4 == 14 ? 3 : *c >> 3 == 30 ? 4 : 0;
    if (bytes == 0)
        return 0;
    *out = bytes == 1 ? *c : *c & (0x7fu >> bytes);
    for (int i = 1; i < bytes; i++) {
        if (c[i] >> 6 != 2)
            return 0;
        *out = *out << 6 | (c[i] & 0x3fu);
    }
    bool is_one = *out >= least[bytes] && *out <= 0x10ffff && !(*out >= 0xd800 && *out <= 0xdfff);
    return is_one ? bytes : 0;
}

bool weft_is_utf8(const char *text)
{
    unsigned value;
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        const int bytes = code_point(c, &value);
        if (bytes == 0)
            return false;
        c += bytes;
    }
    return true;
}

/* What YAML prints inside a block: no breaks but \n, nothing that controls, no byte order mark. */
static bool fits_block(const char *text)
{
    unsigned value;
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        const int bytes = code_point(c, &value);
        if (bytes == 0 || (value < 32 && value != '\n' && value != '\t') ||
            (value >= 127 && value < 160) || value == 0x2028 || value == 0x2029 ||
            value == 0xfeff || value == 0xfffe || value == 0xffff)
            return false;
        c += bytes;
    }
    return *text != '\0';
}

void weft_yaml_block(const char *text, int indent, FILE *out)
{
    if (!fits_block(text)) {
        weft_yaml_text(text, false, out);
        fputc('\n', out);
        return;
    }
    /* The indentation is told: the first line may begin with blanks. All breaks at the end stay. */
    const bool ends = text[strlen(text) - 1] == '\n';
    fprintf(out, "|2%s\n", ends ? "+" : "-");
    for (const char *line = text; *line;) {
        const int length = (int)strcspn(line, "\n");
        fprintf(out, "%*s%.*s\n", length > 0 ? indent + 2 : 0, "", length, line);
        line += length + (line[length] == '\n');
    }
}

void weft_job_name(const char *path, char out[WEFT_JOB_NAME_BYTES])
{
    size_t end = strlen(path), used = 0;
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    for (size_t i = start; i < end && used + 1 < WEFT_JOB_NAME_BYTES; i++) {
        const unsigned char c = (unsigned char)path[i];
        if (c < 128 && isalnum(c))
            out[used++] = (char)tolower(c);
        else if (used > 0 && out[used - 1] != '-')
            out[used++] = '-';
    }
    while (used > 0 && out[used - 1] == '-')
        used--;
    out[used] = '\0';
    if (used == 0)
        strcpy(out, "weft");
    else if (isdigit((unsigned char)out[0])) { /* a service is named after it */
        memmove(out + 1, out, used < WEFT_JOB_NAME_BYTES - 1 ? used + 1 : used);
        out[0] = 'r';
        out[WEFT_JOB_NAME_BYTES - 1] = '\0';
    }
}

const char *weft_job_file_name(weft_job_kind kind, int file)
{
    static const char *const names[WEFT_NUM_JOBS][WEFT_JOB_MAX_FILES + 1] = {
        [WEFT_JOB_MPIRUN] = {"hostfile", "job.sh"},
        [WEFT_JOB_SLURM] = {"job.sbatch"},
        [WEFT_JOB_KUBERNETES] = {"job.yaml"},
    };
    return names[kind][file];
}

void weft_job_shell_word(const char *word, FILE *out)
{
    fputc(' ', out);
    weft_shell_word(word, out);
}

/* Open MPI gives ranks a second at SIGTERM, in which little is saved, and passes SIGUSR1 on. */
const char weft_job_passing[] =
    "asked=${weft_asked-} interrupted= job= telling= code= killed=\n"
    "# Without ranks yet mpirun loses the signal: it is sent again, each time after twice as "
    "long.\n"
    "tell() {\n"
    "    if [ -z \"$job\" ]; then return; fi\n"
    "    kill -USR1 \"$job\"\n"
    "    if [ -n \"$telling\" ]; then return; fi\n"
    "    telling=1\n"
    "    for ((i = 1; ; i++)); do\n"
    "        sleep 1 && kill -0 \"$job\" || exit\n"
    "        if (((i & (i - 1)) == 0)); then kill -USR1 \"$job\"; fi\n"
    "    done </dev/null >/dev/null 2>&1 &\n"
    "}\n"
    "pass_on() {\n"
    "    interrupted=1 asked=${asked:-$1}\n"
    "    if [ \"$1\" = TERM ]; then asked=TERM; fi\n"
    "    tell\n"
    "}\n"
    "for signal in USR1 TERM INT HUP; do trap \"pass_on $signal\" \"$signal\"; done\n";

/* `wait` ends early at a signal, and is then repeated for the job's own code. A rank that is not
 * ready for the signal yet dies of it (138): nothing was done that could be saved. */
const char weft_job_waiting[] = "if [ -n \"$asked\" ]; then tell; fi\n"
                                "while :; do\n"
                                "    interrupted=\n"
                                "    wait \"$job\"\n"
                                "    code=$?\n"
                                "    if [ -z \"$interrupted\" ]; then break; fi\n"
                                "done 2>/dev/null\n"
                                "if [ -n \"$asked\" ] && [ \"$code\" -eq 138 ]; then code=75; fi\n";

const char weft_job_judging[] =
    "# A new verdict of the watchdog has ended this start: it names ranks (\"missing\") and "
    "\"nodes\".\n"
    "# One with a \"place\" tells where a killed rank was, and has ended nothing.\n"
    "verdict=$run/flight/verdict.json\n"
    "mark() { stat -c '%i %y' -- \"$verdict\" 2>/dev/null; }\n"
    "judged() {\n"
    "    local now\n"
    "    now=$(mark)\n"
    "    [ -n \"$now\" ] && [ \"$now\" != \"$marked\" ] && ! grep -q '\"place\": ' \"$verdict\"\n"
    "}\n"
    "named() { if judged; then sed -n \"s/.*\\\"$1\\\": \\[\\([^]]*\\)\\].*/\\1/p\" "
    "\"$verdict\" | tr -d '\" '; fi; }\n"
    "# Before each start. Who is at work there keeps what says so, and refuses this one.\n"
    "prepare() {\n"
    "    marked=$(mark)\n"
    "    flock -sn -- \"$run/.alive\" true 2>/dev/null\n"
    "    if [ $? -ne 1 ]; then rm -f -- \"$run/.alive\"; fi\n"
    "    rm -f -- \"$run/.said\"\n"
    "}\n";

static const char again[] =
    "restarts=0 tries=0 alike=0 last= farthest=0 delay=0\n"
    "last_step() {\n"
    "    local step\n"
    "    step=$(tail -n 3 -- \"$run/metrics.jsonl\" 2>/dev/null |\n"
    "        sed -n 's/^{\"step\": \\([0-9]*\\),.*}$/\\1/p' | tail -n 1)\n"
    "    echo \"${step:-0}\"\n"
    "}\n"
    "# Whether the folder was moved or removed under the run: nobody goes on with a new one "
    "unasked.\n"
    "moved() {\n"
    "    [ \"$code\" -eq 6 ] && [ ! -e \"$run/ledger.jsonl\" ] &&\n"
    "        { [ -e \"$run/checkpoints\" ] || [ ! -e \"$run\" ]; }\n"
    "}\n"
    "# Whether it is started again: a fault ended it, and not always the same one in one "
    "step.\n"
    "again() {\n"
    "    local how phase=\n"
    "    job=\n"
    "    read -r _ phase 2>/dev/null <\"$run/.alive\"\n"
    "    case \"$code\" in\n"
    "    4 | 5 | 6 | 9 | 10) ;;\n"
    "    # Open MPI's own, where a rank that starts does not find another.\n"
    "    1) if [ \"$phase\" != start ]; then return 1; fi ;;\n"
    "    129 | 130 | 143) return 1 ;;\n"
    "    *) if [ \"$code\" -le 128 ]; then return 1; fi ;;\n"
    "    esac\n"
    "    if [ -n \"$asked\" ] && [ \"$code\" -gt 128 ] && [ -e \"$run/checkpoints/latest\" ]; then "
    "code=75; fi\n"
    "    if [ -n \"$asked\" ] || moved; then return 1; fi\n"
    "    if { [ \"$code\" -gt 128 ] || [ \"$code\" -eq 1 ]; } && [ \"$phase\" != steps ] && [ "
    "\"$tries\" -lt 5 ]; then\n"
    "        tries=$((tries + 1)) delay=$restart_delay\n"
    "        pause \"${killed:+$killed: }the start ended with exit code $code before its first "
    "step: it is tried "
    "again\" \"$tries of 5\"\n"
    "        return\n"
    "    fi\n"
    "    if [ \"$max_restarts\" -eq 0 ]; then return 1; fi\n"
    "    step=$(last_step)\n"
    "    what=\"${killed:+$killed: }the job ended with exit code $code after step $step\"\n"
    "    how=\"$code $step $(named missing) $(sed -n 's/.*process rank \\([0-9]*\\) .*exited "
    "on signal.*/\\1/p' \"$run/job.err\" 2>/dev/null)\"\n"
    "    if [ \"$phase\" != steps ]; then how=; else tries=0; fi\n"
    "    if [ -n \"$how\" ] && [ \"$how\" = \"$last\" ]; then alike=$((alike + 1)); else "
    "alike=1; fi\n"
    "    last=$how\n"
    "    if [ \"$alike\" -ge 4 ]; then\n"
    "        echo \"weft: $what, $alike times in a row and alike: it is not started again\" "
    ">&2\n"
    "        return 1\n"
    "    fi\n"
    "    if [ \"$restarts\" -ge \"$max_restarts\" ]; then\n"
    "        echo \"weft: $what, and was started again $restarts times "
    "(reliability.max_restarts)\" >&2\n"
    "        return 1\n"
    "    fi\n"
    "    if [ \"$restarts\" -eq 0 ] || [ \"$step\" -gt \"$farthest\" ]; then\n"
    "        delay=$restart_delay\n"
    "    else\n"
    "        delay=$((delay * 2 > 600 ? 600 : delay * 2))\n"
    "    fi\n"
    "    farthest=$((step > farthest ? step : farthest)) restarts=$((restarts + 1))\n"
    "    pause \"$what: it is started again\" \"$restarts of $max_restarts, "
    "reliability.max_restarts\"\n"
    "}\n"
    "# False: asked to stop meanwhile.\n"
    "pause() {\n"
    "    echo \"weft: $1 in $delay s ($2)\" >&2\n"
    "    sleep \"$delay\" &\n"
    "    wait $!\n"
    "    if [ -n \"$asked\" ]; then\n"
    "        kill $!\n"
    "        echo 'weft: asked to stop: it is not started again' >&2\n"
    "        if [ -e \"$run/checkpoints/latest\" ]; then code=75; fi\n"
    "        return 1\n"
    "    fi\n"
    "}\n";

void weft_job_print_again(const weft_job *job, FILE *out)
{
    fprintf(out, "max_restarts=%" PRId64 " restart_delay=%" PRId64 "\n%s", job->restarts.max,
            job->restarts.delay_s, again);
}
