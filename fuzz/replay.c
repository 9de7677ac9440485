/* Runs a target over the files that are named: for the kept corpus, with any compiler. */
#include "harness.h"

int main(int count, char **names) {
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(names[i], "rb");
        MUST(file != NULL);
        static uint8_t data[1 << 20];
        size_t         bytes = fread(data, 1, sizeof data, file);
        fclose(file);
        uint8_t *exact = exact_copy(data, bytes);
        LLVMFuzzerTestOneInput(exact, bytes);
        free(exact);
    }
    printf("%d inputs\n", count - 1);
    return 0;
}
