/* Whether the lanes of a layer are ordered: in its rehearsal, where every order is known. */
#include <string.h>

#include "core/device/device.h"
#include "layers/check/internal.h"
#include "layers/describe/rehearse.h"

typedef struct finding {
    const char *layer;
    bool is_rehearsed;
    weft_race_words race; /* "": none */
} finding;

static weft_status see(void *context, const weft_layer *layer, const weft_device *device)
{
    finding *f = context;
    size_t count;
    weft_race race;
    const weft_noted *notes = weft_notes(device, &count);
    if (strcmp(weft_layer_name(layer), f->layer) != 0)
        return WEFT_OK;
    WEFT_TRY(weft_race_find(notes, count, weft_noted_ranges(device), &race));
    f->is_rehearsed = true;
    f->race = weft_race_text(&race);
    return WEFT_OK;
}

weft_status weft_check_races(const weft_check_layer *l, weft_check_report *report, bool *out)
{
    const weft_model *model = l->place->model;
    finding f = {.layer = weft_layer_name(l->layer)};
    const weft_witness witness = {see, &f};
    char check[48];
    snprintf(check, sizeof check, "races at %s", l->place->mesh);
    if (model->shape.tp == 1)
        check[strlen("races")] = '\0';
    *out = false;
    if (!l->in_list) /* rehearsed inside another */
        return WEFT_OK;
    WEFT_TRY(weft_rehearse_before(&witness, &model->options, model->setup.own_options,
                                  &model->shape, model->build));
    *out = f.race.text[0] != '\0';
    if (!f.is_rehearsed)
        weft_check_report_add(report, WEFT_CHECK_LEFT_OUT, check,
                              "it describes itself, and is not rehearsed");
    else if (!*out)
        weft_check_report_add(report, WEFT_CHECK_OK, check, "its lanes are ordered");
    else
        weft_check_report_add(report, WEFT_CHECK_WRONG, check,
                              "%s; record an event behind the first (weft_lane_record) and let the "
                              "other lane wait for it (weft_lane_wait)",
                              f.race.text);
    return WEFT_OK;
}
