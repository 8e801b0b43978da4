#include "launcher/jobs/internal.h"

#include <ctype.h>
#include <string.h>

static bool is_plain(const char *text)
{
    static const char marks[] = "_-./=:,+@%";
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c >= 128 || (!isalnum(*c) && !strchr(marks, *c)))
            return false;
    return *text != '\0';
}

static bool has_control(const char *text)
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
    if (has_control(text)) {
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
