/* Ranks' flight records, one behind each NUL, the last the verdict, as weft inspect --flight reads
 * them; and the first once more as a run's ledger. */
#include <sys/stat.h>

#include "launcher/training/ledger.h"
#include "launcher/verbs/train/train.h"
#include "tests/fuzz/fuzz.h"

static void inspect(const char *run, bool json)
{
    FILE *out = fopen("/dev/null", "w");
    FUZZ_CHECK(out, "/dev/null");
    const weft_status status = weft_inspect_flight(run, json, out);
    fclose(out);
    if (status != WEFT_OK)
        fuzz_refused(status);
}

static void read_ledger(const char *path)
{
    weft_ledger_account account = {0};
    const weft_status status = weft_ledger_read(path, &account);
    if (status == WEFT_OK) {
        FILE *out = fopen("/dev/null", "w");
        FUZZ_CHECK(out, "/dev/null");
        for (int form = WEFT_REPORT_TEXT; form <= WEFT_REPORT_JSON; form++) {
            weft_report report;
            weft_report_begin(&report, (weft_report_form)form);
            weft_ledger_report(&report, &account);
            FUZZ_CHECK(weft_report_end(&report, WEFT_OK, out) == WEFT_OK, "form %d", form);
        }
        fclose(out);
        const double goodput = weft_ledger_goodput(&account);
        FUZZ_CHECK(goodput >= 0 && goodput <= 1, "%g", goodput);
    } else {
        fuzz_refused(status);
    }
    weft_ledger_account_release(&account);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_parts parts;
    char name[48];
    fuzz_cut(data, size, 4, &parts);
    if (mkdir(fuzz_path("flight"), 0700) != 0)
        fuzz_empty(fuzz_path("flight"));
    for (int i = 0; i < parts.count; i++) {
        snprintf(name, sizeof name, "flight/rank-%d.json", i);
        fuzz_write(fuzz_path(i > 0 && i == parts.count - 1 ? "flight/verdict.json" : name),
                   parts.at[i], parts.bytes[i]);
    }
    inspect(fuzz_folder(), false);
    inspect(fuzz_folder(), true);
    if (parts.count == 1) {
        fuzz_write(fuzz_path("ledger.jsonl"), parts.at[0], parts.bytes[0]);
        read_ledger(fuzz_path("ledger.jsonl"));
    }
    fuzz_release(&parts);
    return 0;
}
