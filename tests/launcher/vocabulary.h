/* Trains a small byte-level BPE in the open and writes it as GPT-2's two files, and encodes by the
 * definition: each merge in turn over the whole word. Tests compare launcher/text/bpe.h to it. */
#ifndef WEFT_TESTS_LAUNCHER_VOCABULARY_H
#define WEFT_TESTS_LAUNCHER_VOCABULARY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY_MERGES = 50, VOCABULARY_EOD = 256 + VOCABULARY_MERGES };

typedef struct vocabulary {
    char pieces[VOCABULARY_EOD][64]; /* bytes; none of them is NUL in the words used here */
    int lengths[VOCABULARY_EOD];
    int left[VOCABULARY_MERGES], right[VOCABULARY_MERGES];
} vocabulary;

/* Joins every (left, right) from left to right. */
static inline int vocabulary_merge(int *ids, int count, int left, int right, int merged)
{
    int used = 0;
    for (int i = 0; i < count; i++) {
        bool joins = i + 1 < count && ids[i] == left && ids[i + 1] == right;
        ids[used++] = joins ? merged : ids[i];
        i += joins;
    }
    return used;
}

static inline int vocabulary_encode_word(const vocabulary *v, const char *word, int bytes, int *ids)
{
    int count = bytes;
    for (int i = 0; i < bytes; i++)
        ids[i] = (unsigned char)word[i];
    for (int m = 0; m < VOCABULARY_MERGES; m++)
        count = vocabulary_merge(ids, count, v->left[m], v->right[m], 256 + m);
    return count;
}

/* GPT-2's split for text of ASCII letters, single spaces and newlines: a word takes the space
 * before it. */
static inline int vocabulary_word_bytes(const char *text, int left)
{
    int i = text[0] == ' ' && left > 1 && text[1] != '\n';
    int first = i;
    while (i < left && text[i] != ' ' && text[i] != '\n')
        i++;
    return i > first ? i : 1;
}

/* Merges the commonest pair, time and again. */
static inline void vocabulary_train(vocabulary *v, const char *text)
{
    int bytes = (int)strlen(text), count = bytes;
    int *ids = malloc((size_t)bytes * sizeof(int)), *words = malloc((size_t)bytes * sizeof(int));
    int(*counts)[VOCABULARY_EOD] = malloc(sizeof(int[VOCABULARY_EOD][VOCABULARY_EOD]));
    for (int i = 0; i < 256; i++) {
        v->pieces[i][0] = (char)i;
        v->lengths[i] = 1;
    }
    for (int at = 0, word = 0; at < bytes; word++) {
        for (int n = vocabulary_word_bytes(text + at, bytes - at); n > 0; n--, at++) {
            ids[at] = (unsigned char)text[at];
            words[at] = word;
        }
    }
    for (int m = 0; m < VOCABULARY_MERGES; m++) {
        int best_left = 0, best_right = 0, used = 0;
        memset(counts, 0, sizeof(int[VOCABULARY_EOD][VOCABULARY_EOD]));
        for (int i = 0; i + 1 < count; i++) {
            if (words[i] == words[i + 1] &&
                ++counts[ids[i]][ids[i + 1]] > counts[best_left][best_right]) {
                best_left = ids[i];
                best_right = ids[i + 1];
            }
        }
        v->left[m] = best_left;
        v->right[m] = best_right;
        int id = 256 + m, n = v->lengths[best_left];
        memcpy(v->pieces[id], v->pieces[best_left], (size_t)n);
        memcpy(v->pieces[id] + n, v->pieces[best_right], (size_t)v->lengths[best_right]);
        v->lengths[id] = n + v->lengths[best_right];
        for (int i = 0; i < count; i++) {
            bool joins = i + 1 < count && words[i] == words[i + 1] && ids[i] == best_left &&
                         ids[i + 1] == best_right;
            ids[used] = joins ? id : ids[i];
            words[used++] = words[i];
            i += joins;
        }
        count = used;
    }
    free(counts);
    free(words);
    free(ids);
}

/* A byte as GPT-2's files write it: itself where it prints, else a character from U+0100 on. */
static inline void vocabulary_put_byte(FILE *file, int byte)
{
    int character = byte, hidden = 0;
    for (int b = 0; b <= byte; b++) {
        bool prints = (b > 32 && b < 127) || (b > 160 && b < 173) || b > 173;
        if (b == byte && !prints)
            character = 256 + hidden;
        hidden += !prints;
    }
    if (character < 128)
        fputc(character, file);
    else
        fprintf(file, "%c%c", 0xc0 | character >> 6, 0x80 | (character & 0x3f));
}

static inline void vocabulary_put_piece(const vocabulary *v, FILE *file, int id, bool json)
{
    for (int i = 0; i < v->lengths[id]; i++) {
        int byte = (unsigned char)v->pieces[id][i];
        if (json && (byte == '"' || byte == '\\'))
            fputc('\\', file);
        vocabulary_put_byte(file, byte);
    }
}

static inline void vocabulary_write(const vocabulary *v, const char *vocab_path,
                                    const char *merge_path)
{
    FILE *vocab = fopen(vocab_path, "w"), *merges = fopen(merge_path, "w");
    fputs("{", vocab);
    for (int id = 0; id < VOCABULARY_EOD; id++) {
        fputs("\"", vocab);
        vocabulary_put_piece(v, vocab, id, true);
        fprintf(vocab, "\": %d, ", id);
    }
    fprintf(vocab, "\"<|endoftext|>\": %d}\n", VOCABULARY_EOD);
    fputs("#version: 0.2\n", merges);
    for (int m = 0; m < VOCABULARY_MERGES; m++) {
        vocabulary_put_piece(v, merges, v->left[m], false);
        fputs(" ", merges);
        vocabulary_put_piece(v, merges, v->right[m], false);
        fputs("\n", merges);
    }
    fclose(vocab);
    fclose(merges);
}

static const char vocabulary_text[] =
    "the weaver threw the weft through the warp and the weft went with the warp\n"
    "where the other weavers wove the thread there they were weaving the thread over the warp\n"
    "and then they threw another weft and another and the others threw theirs there\n"
    "seven weavers soothe the heavy thread; neither gathers feathers nor breathes on the heather\n"
    "gathering together they wander further than ever, never bothering whether the weather wears\n";

#endif
