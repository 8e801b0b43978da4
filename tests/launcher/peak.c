/* Shares of the peak: what the peak is taken from, that no share exceeds 1, whatever the config
 * says and whoever else runs, and that a quieter moment is looked for in a part of the run's time.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "launcher/training/peak.h"
#include "tests/expect.h"
#include "tests/launcher/child.h"

enum { NUM_OTHERS = 3, STEPS = 12 };

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 64, \"num_attention_heads\": 2, "
    "\"seq_length\": 64, \"vocab_size\": 53},\n"
    "\"train\": {\"global_batch_size\": 4, \"train_iters\": 12},\n"
    "\"checkpoint\": {\"no_save\": true}, \"data\": {\"mock_data\": true},\n"
    "\"device\": {\"num_threads\": 1}, \"log\": {\"trace_step\": 0}}\n";

static void expect_peak(weft_peak p, double flops, weft_peak_source source)
{
    weft_peak_settle(&p);
    EXPECT(p.flops == flops && p.source == source,
           "given %g, measured %g, processor %g, achieved %g: %g, %s", p.given, p.measured,
           p.processor, p.achieved, p.flops, weft_peak_source_text(p.source));
}

static void check_rules(void)
{
    expect_peak((weft_peak){.measured = 90, .processor = 100}, 90, WEFT_PEAK_MEASURED);
    expect_peak((weft_peak){.measured = 110, .processor = 100}, 110, WEFT_PEAK_MEASURED);
    expect_peak((weft_peak){.measured = 49, .processor = 100}, 100, WEFT_PEAK_PROCESSOR);
    expect_peak((weft_peak){.measured = 49}, 49, WEFT_PEAK_MEASURED);
    expect_peak((weft_peak){.given = 70}, 70, WEFT_PEAK_GIVEN);
    expect_peak((weft_peak){.measured = 90, .processor = 100, .achieved = 95}, 95,
                WEFT_PEAK_ACHIEVED);
    expect_peak((weft_peak){.given = 70, .achieved = 95}, 95, WEFT_PEAK_ACHIEVED);
    weft_peak p = {.given = 70};
    EXPECT(weft_peak_share(&p, 35) == 0.5, "half of what is given");
    EXPECT(weft_peak_share(&p, 140) == 1, "twice what is given");
    EXPECT(weft_peak_share(&p, 70) == 0.5, "the best step is forgotten");
}

/* As after a set-up in a busy moment. */
static void check_looking(void)
{
    weft_comm *self;
    weft_device *device;
    weft_lane *lane;
    weft_peak p;
    weft_device_stats stats;
    weft_config c = {0};
    EXPECT_OK(weft_comm_create_self(&self));
    EXPECT_OK(weft_device_create_cpu(1, 0, &device));
    EXPECT_OK(weft_lane_create(device, 0, "compute", &lane));
    EXPECT_OK(weft_peak_find(&p, &c, self, lane));
    EXPECT(p.measured > 0 && p.processor > 0 && p.cores == 1, "measured %g, processor %g, %g cores",
           p.measured, p.processor, p.cores);
    double measured = p.measured;
    p.processor = 1e3 * measured; /* never near */
    p.looks = true;
    p.run_us = p.num_goes = 0;
    EXPECT_OK(weft_peak_look(&p, 1));
    EXPECT(p.num_goes == 0, "a product in the first millisecond");
    for (int i = 0; i < 1000 && p.num_goes == 0; i++)
        EXPECT_OK(weft_peak_look(&p, 1e4));
    EXPECT(p.num_goes == 1, "no product in hours");
    for (int i = 0; i < 1000 && p.looks; i++)
        EXPECT_OK(weft_peak_look(&p, 1e6));
    EXPECT(p.num_goes == 8 && !p.looks && p.measured >= measured, "%d goes", p.num_goes);
    weft_peak_release(&p);
    weft_device_get_stats(device, &stats);
    EXPECT(stats.pinned_bytes_now == 0, "%zu bytes are left", stats.pinned_bytes_now);
    weft_lane_destroy(lane);
    weft_device_destroy(device);
    weft_comm_destroy(self);
}

/* Every share is in (0, 1]; returns the largest. */
static double check_shares(const char *metrics)
{
    double most = 0;
    int count = 0;
    for (const char *at = metrics; at && (at = strstr(at, "utilization\": ")) != NULL; count++) {
        at = strchr(at, ':') + 1;
        double share = atof(at);
        EXPECT(share > 0 && share <= 1, "share %g", share);
        most = fmax(most, share);
    }
    EXPECT(count == STEPS, "%d lines:\n%.1000s", count, metrics);
    return most;
}

/* A claim below what steps do is corrected by them. */
static void check_given(void)
{
    child_says(WORDS("train", "c.json", "--out", "given", "--set", "device.peak_flops=1e6"), 0,
               WORDS("; peak: 0.001 GFLOP/s, given\n", "\nmodel FLOPs: "), NULL);
    char *text = child_read("given/metrics.jsonl");
    EXPECT(check_shares(text) == 1, "no step was the best");
    EXPECT(text && strstr(text, "\"peak_flops_from\": \"achieved\""), "%.1000s", text);
}

/* The peak of an emulated accelerator is its pace. It gives the losses of the machine itself. */
static void check_paced(void)
{
    child_says(WORDS("train", "c.json", "--out", "paced", "--set", "device.pace=5e9", "--set",
                     "device.pace_work=all"),
               0, WORDS("; peak: 5 GFLOP/s, given\n"), NULL);
    char *paced = child_read("paced/metrics.jsonl"), *plain = child_read("given/metrics.jsonl");
    const char *a = paced, *b = plain;
    check_shares(paced);
    for (int i = 0; i < STEPS && a && b; i++) {
        a = strstr(a + 1, "\"loss\": ");
        b = strstr(b + 1, "\"loss\": ");
        EXPECT(a && b && strtod(a + 8, NULL) == strtod(b + 8, NULL), "step %d", i + 1);
    }
}

/* Beside processes that want all cores. */
static void check_beside_others(void)
{
    pid_t others[NUM_OTHERS];
    child c;
    for (int i = 0; i < NUM_OTHERS; i++) {
        others[i] = fork();
        if (others[i] == 0)
            alarm(CHILD_PATIENCE_S); /* should this test be killed */
        for (volatile double x = 1; others[i] == 0;)
            x = x * 1.0000001;
    }
    CHILD_RUN(&c, "train", "c.json", "--out", "beside", "--mesh", "dp=2", "--json");
    for (int i = 0; i < NUM_OTHERS; i++) {
        if (others[i] > 0) {
            kill(others[i], SIGKILL);
            waitpid(others[i], NULL, 0);
        }
    }
    EXPECT(c.exit_code == 0, "exit %d: %s", c.exit_code, c.err);
    check_shares(c.out);
    const char *end = c.out ? strchr(c.out, '\n') : NULL;
    cJSON *json = end ? cJSON_ParseWithLength(c.out, (size_t)(end - c.out)) : NULL;
    const cJSON *from = cJSON_GetObjectItem(json, "peak_flops_from");
    const cJSON *peak = cJSON_GetObjectItem(json, "peak_flops");
    EXPECT(cJSON_IsNumber(peak) && peak->valuedouble > 1e8 && cJSON_IsString(from) &&
               strcmp(from->valuestring, "given") != 0,
           "no peak in the first line:\n%.600s", c.out);
    cJSON_Delete(json);
}

int main(void)
{
    child_begin();
    EXPECT(child_write("c.json", config), "c.json");
    check_rules();
    check_looking();
    check_given();
    check_paced();
    check_beside_others();
    return child_finish();
}
