/* The device `note`: it keeps what is enqueued and runs nothing.
 *
 * Its device memory has addresses and no bytes: touching it is a fault. Pinned memory is real,
 * since hosts read counts there. Kernels (kernels/note) and communicators (comm/note) enqueue
 * operations
 * (<weft/operation.h>); functions of a host, copies and zeroing are kept by name and never run.
 * Lanes and events keep who waits for whom. Nothing ever waits. One thread drives it. */
#ifndef WEFT_CORE_DEVICE_NOTE_H
#define WEFT_CORE_DEVICE_NOTE_H

#include <weft/device.h>
#include <weft/operation.h>

typedef enum weft_noted_kind {
    WEFT_NOTED_OPERATION,
    WEFT_NOTED_COPY,
    WEFT_NOTED_ZERO,
    WEFT_NOTED_HOST, /* a function of the host */
    WEFT_NOTED_RECORD,
    WEFT_NOTED_WAIT
} weft_noted_kind;

typedef struct weft_noted {
    weft_noted_kind kind;
    const weft_lane *lane;
    weft_operation operation; /* OPERATION; COPY and ZERO: bytes */
    const char *label;        /* HOST; static */
    const weft_event *event;  /* RECORD, WAIT */
} weft_noted;

/* What a backward does that forward has done, too. */
typedef enum weft_note_again {
    WEFT_NOTE_NEW,
    WEFT_NOTE_AGAIN,    /* what backward needs in any case */
    WEFT_NOTE_REPEATED, /* because forward did not keep it */
} weft_note_again;

/* What operations noted from now on are. */
typedef struct weft_note_scope {
    const char *module; /* static; NULL: as the operation is called */
    bool backward;      /* of a pass; below: in one */
    weft_note_again again;
} weft_note_scope;

weft_status weft_device_create_note(weft_device **out) WEFT_CHECKED;
/* False: another device. */
bool weft_device_is_note(const weft_device *device);

/* The scope of what any lane of the device enqueues. Changes it, and returns what it was; on
 * another device does nothing. */
weft_note_scope weft_note_enter(weft_device *device, weft_note_scope scope);
weft_note_scope weft_note_scope_of(const weft_device *device);
/* Names the module of what the lane's device enqueues, until the next name: "linear_qkv". Static.
 * NULL: none. Returns the name before. On another device it does nothing. */
const char *weft_note_module(const weft_lane *lane, const char *module);

/* Sets the scope's `again`, and returns what it was. */
weft_note_again weft_note_redoes(const weft_lane *lane, weft_note_again again);
/* WEFT_TRY of a call whose operations, and what it stashes, are of this module. */
#define WEFT_TRY_AS(lane, module, call)                                                            \
    do {                                                                                           \
        const char *outer_module = weft_note_module(lane, module);                                 \
        WEFT_TRY(call);                                                                            \
        weft_note_module(lane, outer_module);                                                      \
    } while (0)

/* Enqueues an operation: its module, where it has none, is the scope's, or "own". Its phase is
 * FORWARD outside a backward; in one FORWARD becomes RECOMPUTE, as does all that the scope says to
 * be done again. Nothing is kept of a count of 0. WEFT_MEMORY. */
weft_status weft_note_operation(weft_lane *lane, const weft_operation *operation) WEFT_CHECKED;
/* All that was enqueued since the device was made, or since the last clear. Borrowed. */
const weft_noted *weft_notes(const weft_device *device, size_t *out_count);
void weft_notes_clear(weft_device *device);

#endif
