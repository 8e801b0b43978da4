#include <weft/device.h>

const char *weft_memory_text(weft_memory_purpose purpose)
{
    static const char *const texts[] = {
#define WEFT_MEMORY_TEXT(name, text) [WEFT_MEMORY_##name] = text,
        WEFT_MEMORY_LIST(WEFT_MEMORY_TEXT)
#undef WEFT_MEMORY_TEXT
    };
    return texts[purpose];
}
