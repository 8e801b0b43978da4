#include "launcher/process/mpirun_words.h"

#include <stdio.h>
#include <string.h>

typedef weft_mpirun_words listener;

static bool is_ruler(const char *line)
{
    size_t dashes = strspn(line, "-");
    return dashes >= 60 && (line[dashes] == '\n' || line[dashes] == '\0');
}

/* Text as one line: breaks become spaces. */
static void print_flat(const listener *l)
{
    fprintf(stderr, "weft %s: mpirun: ", l->verb);
    bool space = true;
    for (const char *text = l->block; *text; text++) {
        bool blank = *text == '\n' || *text == ' ';
        if (!(blank && space))
            fputc(blank ? ' ' : *text, stderr);
        space = blank;
    }
    fputc('\n', stderr);
}

static void end_block(listener *l)
{
    int rank, number;
    char node[256];
    const char *noticed = strstr(l->block, "process rank ");
    if (l->muted || l->judged) {
        /* whoever ended the job has said so */
    } else if (noticed &&
               sscanf(noticed, "process rank %d with PID %*d on node %255s exited on signal %d",
                      &rank, node, &number) == 3) {
        char place[WEFT_WATCH_PLACE_BYTES] = "";
        const bool knows =
            l->run && weft_watch_find_killed(l->run, &l->verdict, rank, place, sizeof place);
        fprintf(stderr, "weft %s: rank %d on %s was killed by signal %d (%s)%s%s\n", l->verb, rank,
                node, number, strsignal(number), knows ? " " : "", place);
        l->explained = true;
        l->killed_by = number;
        l->killed_rank = rank;
    } else if (!strstr(l->block, "Primary job  terminated normally") &&
               !strstr(l->block, "exited with non-zero status") &&
               !strstr(l->block, "MPI_ABORT was invoked")) {
        print_flat(l);
        l->explained = true;
    }
    l->block[0] = '\0';
}

/* Lines of mpirun about its own words. */
static bool is_chatter(const char *line)
{
    static const char *const parts[] = {"sent help message help-mpi", "orte_base_help_aggregate",
                                        "/show_help.c at line"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (line[0] == '[' && strstr(line, parts[i]))
            return true;
    static const char *const starts[] = {"mpirun: Forwarding signal", "mpirun: killing job",
                                         "mpirun: abort is already", "[warn] Epoll "};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strncmp(line, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static void take_line(listener *l, const char *line)
{
    if (is_ruler(line)) {
        if (l->in_block)
            end_block(l);
        l->in_block = !l->in_block;
    } else if (l->in_block) {
        size_t used = strlen(l->block);
        snprintf(l->block + used, sizeof l->block - used, "%s", line);
    } else if (!is_chatter(line)) {
        fputs(line, stderr);
        l->explained = true;
        l->judged = l->judged || strstr(line, "; the job ends (weft inspect --flight ");
    }
}

static void end_line(listener *l)
{
    l->line[l->line_bytes] = '\0';
    if (l->line_bytes > 0)
        take_line(l, l->line);
    l->line_bytes = 0;
}

void weft_mpirun_words_take(listener *l, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        l->line[l->line_bytes++] = text[i];
        if (text[i] == '\n' || l->line_bytes == sizeof l->line - 1)
            end_line(l);
    }
}

void weft_mpirun_words_end(listener *l)
{
    end_line(l);
    if (l->block[0])
        end_block(l);
}
