#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/parameters/internal.h"

static const char key[] = "train.parameter_rules";

/* A word behind the pattern: what it sets, or a fault. */
static weft_status read_word(const char *rule, const char *word, size_t bytes, weft_rule *out)
{
    static const char frozen[] = "frozen", thawed[] = "frozen=false";
    const struct {
        const char *name;
        bool *says;
        float *value;
    } numbers[] = {{"lr_mult=", &out->says_lr, &out->lr_mult},
                   {"wd_mult=", &out->says_decay, &out->wd_mult}};
    const bool freezes = bytes == sizeof frozen - 1 && memcmp(word, frozen, bytes) == 0;
    if (freezes || (bytes == sizeof thawed - 1 && memcmp(word, thawed, bytes) == 0)) {
        out->says_frozen = true;
        out->frozen = freezes;
        return WEFT_OK;
    }
    for (int i = 0; i < 2; i++) {
        const size_t name = strlen(numbers[i].name);
        char *end;
        if (bytes <= name || memcmp(word, numbers[i].name, name) != 0)
            continue;
        const double value = strtod(word + name, &end);
        if (end != word + bytes || !(value >= 0 && value <= 1e6))
            break;
        *numbers[i].says = true;
        *numbers[i].value = (float)value;
        return WEFT_OK;
    }
    return WEFT_KEY_ERROR(key,
                          "\"%s\": %.*s is no rule; behind a pattern stand frozen, frozen=false, "
                          "lr_mult=X and wd_mult=X, X from 0 to 1e6",
                          rule, (int)bytes, word);
}

weft_status weft_rule_read(const char *text, weft_rule *out)
{
    const char *word = text + strspn(text, " ");
    *out = (weft_rule){.pattern = word, .pattern_bytes = strcspn(word, " ")};
    word += out->pattern_bytes;
    if (out->pattern_bytes >= WEFT_MAX_NAME_BYTES)
        return WEFT_KEY_ERROR(key, "\"%.40s...\": longer than any parameter's name", text);
    if (!word[strspn(word, " ")])
        return WEFT_KEY_ERROR(key,
                              "\"%s\": says nothing of the parameters: such as \"%s frozen\" or "
                              "\"%s lr_mult=0.1\"",
                              text, text, text);
    for (word += strspn(word, " "); *word; word += strspn(word, " ")) {
        const size_t bytes = strcspn(word, " ");
        WEFT_TRY(read_word(text, word, bytes, out));
        word += bytes;
    }
    return WEFT_OK;
}

static void apply(const weft_rule *rule, weft_parameter *p)
{
    if (rule->says_frozen)
        p->frozen = rule->frozen;
    if (rule->says_lr)
        p->lr_mult = rule->lr_mult;
    if (rule->says_decay)
        p->wd_mult = rule->wd_mult;
}

weft_status weft_parameters_apply_rules(weft_parameters *p, const weft_string_list *rules,
                                        int *matches)
{
    for (size_t i = 0; i < rules->count; i++) {
        char pattern[WEFT_MAX_NAME_BYTES];
        weft_rule rule;
        WEFT_TRY(weft_rule_read(rules->values[i], &rule));
        memcpy(pattern, rule.pattern, rule.pattern_bytes);
        pattern[rule.pattern_bytes] = '\0';
        for (int k = 0; k < p->count; k++) {
            weft_parameter *parameter = &p->placed[k]->parameter;
            if (fnmatch(pattern, parameter->name, 0) != 0)
                continue;
            apply(&rule, parameter);
            if (matches)
                matches[i]++;
        }
    }
    return WEFT_OK;
}
