#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parallel/spill/internal.h"

enum { MAX_THREADS = 8 };

typedef struct list {
    weft_spill_piece *first, *last;
} list;

typedef struct queue {
    list over;
    pthread_cond_t is_over;
} queue;

/* The threads take requests of all queues in the order in which they came. */
struct weft_spill_backend {
    int fd, num_queues, num_threads;
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t is_work;
    list work;
    bool is_closing;
    queue *queues;
    pthread_t threads[MAX_THREADS];
};

static void append(list *l, weft_spill_piece *piece)
{
    piece->next = NULL;
    if (l->last)
        l->last->next = piece;
    else
        l->first = piece;
    l->last = piece;
}

static weft_spill_piece *take(list *l)
{
    weft_spill_piece *piece = l->first;
    l->first = piece->next;
    if (!l->first)
        l->last = NULL;
    return piece;
}

static int64_t move_bytes(int fd, const weft_spill_piece *piece)
{
    if (piece->fault)
        return -piece->fault;
    char *memory = piece->memory + piece->done;
    off_t offset = (off_t)(piece->offset + piece->done);
    ssize_t moved = piece->is_write ? pwrite(fd, memory, piece->asked, offset)
                                    : pread(fd, memory, piece->asked, offset);
    return moved < 0 ? -errno : moved;
}

static void *thread_main(void *arg)
{
    weft_spill_backend *b = arg;
    pthread_mutex_lock(&b->mutex);
    for (;;) {
        while (!b->work.first && !b->is_closing)
            pthread_cond_wait(&b->is_work, &b->mutex);
        if (!b->work.first)
            break;
        weft_spill_piece *piece = take(&b->work);
        pthread_mutex_unlock(&b->mutex);
        piece->result = move_bytes(b->fd, piece);
        pthread_mutex_lock(&b->mutex);
        append(&b->queues[piece->queue].over, piece);
        pthread_cond_signal(&b->queues[piece->queue].is_over);
    }
    pthread_mutex_unlock(&b->mutex);
    return NULL;
}

static void threads_close(weft_spill_backend *b)
{
    pthread_mutex_lock(&b->mutex);
    b->is_closing = true;
    pthread_cond_broadcast(&b->is_work);
    pthread_mutex_unlock(&b->mutex);
    for (int i = 0; i < b->num_threads; i++)
        pthread_join(b->threads[i], NULL);
    for (int i = 0; i < b->num_queues; i++)
        pthread_cond_destroy(&b->queues[i].is_over);
    pthread_cond_destroy(&b->is_work);
    pthread_mutex_destroy(&b->mutex);
}

/* Signals go to the threads that the program made. */
static int start_threads(weft_spill_backend *b, int wanted)
{
    sigset_t all, before;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!error && b->num_threads < wanted) {
        int fault = weft_spill_next_fault();
        error =
            fault > 0 ? fault : pthread_create(&b->threads[b->num_threads], NULL, thread_main, b);
        if (!error)
            pthread_setname_np(b->threads[b->num_threads++], "weft spill");
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static weft_status threads_open(int fd, int num_queues, int depth, weft_arena *arena,
                                char why[WEFT_SPILL_WHY_BYTES], weft_spill_backend **out)
{
    weft_spill_backend *b;
    WEFT_TRY(weft_arena_alloc(arena, sizeof(weft_spill_backend), &b));
    WEFT_TRY(WEFT_ARRAY(arena, (size_t)num_queues, &b->queues));
    b->fd = fd;
    b->num_queues = num_queues;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->is_work, NULL);
    for (int i = 0; i < num_queues; i++)
        pthread_cond_init(&b->queues[i].is_over, NULL);
    int error = start_threads(b, depth < MAX_THREADS ? depth : MAX_THREADS);
    if (error) {
        threads_close(b);
        snprintf(why, WEFT_SPILL_WHY_BYTES, "no thread: %s", strerror(error));
        return WEFT_DEVICE;
    }
    *out = b;
    return WEFT_OK;
}

static void threads_submit(weft_spill_backend *b, int index, weft_spill_piece *piece)
{
    piece->queue = index;
    pthread_mutex_lock(&b->mutex);
    append(&b->work, piece);
    pthread_cond_signal(&b->is_work);
    pthread_mutex_unlock(&b->mutex);
}

static int threads_start(weft_spill_backend *b, int index)
{
    (void)b, (void)index;
    return 0; /* they began as they were taken */
}

static int threads_wait(weft_spill_backend *b, int index, weft_spill_piece **out)
{
    pthread_mutex_lock(&b->mutex);
    while (!b->queues[index].over.first)
        pthread_cond_wait(&b->queues[index].is_over, &b->mutex);
    *out = take(&b->queues[index].over);
    pthread_mutex_unlock(&b->mutex);
    return 0;
}

const weft_spill_ops weft_spill_threads = {
    .open = threads_open,
    .close = threads_close,
    .submit = threads_submit,
    .start = threads_start,
    .wait = threads_wait,
};
