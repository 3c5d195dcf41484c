/* Classifies a PPM image with a packed model: ./classify MODEL.xnor IMAGE.ppm
 *
 *     cc classify.c $(pkg-config --cflags --libs xnorpp) -o classify
 */
#include <stdio.h>
#include <stdlib.h>
#include <xnorpp.h>

/* The pixels of a binary PPM without comments, or NULL. */
static unsigned char *read_ppm(const char *name, size_t *width, size_t *height) {
    unsigned char *pixels = NULL;
    FILE *file = fopen(name, "rb");
    if (file && fscanf(file, "P6 %zu %zu 255", width, height) == 2 && *width <= 65536 && *height <= 65536) {
        const size_t bytes = *width * *height * 3;
        pixels = malloc(bytes);
        if (fgetc(file) == EOF || !pixels || fread(pixels, 1, bytes, file) != bytes) {
            free(pixels);
            pixels = NULL;
        }
    }
    if (file) fclose(file);
    return pixels;
}

int main(int count, char **arguments) {
    xnorpp_error error;
    xnorpp_model *model = NULL;
    xnorpp_guess guesses[3];
    size_t width, height, found = 0, i;
    unsigned char *pixels;

    if (count != 3) {
        fprintf(stderr, "usage: classify MODEL.xnor IMAGE.ppm\n");
        return 2;
    }
    pixels = read_ppm(arguments[2], &width, &height);
    if (!pixels) {
        fprintf(stderr, "%s is not a binary PPM file\n", arguments[2]);
        return 1;
    }
    if (xnorpp_load(arguments[1], NULL, &model, &error) == XNORPP_OK)
        xnorpp_classify(model, pixels, width, height, 3, 3, guesses, &found, &error);
    if (error.status != XNORPP_OK) fprintf(stderr, "%s\n", error.message);
    for (i = 0; i < found; i++)
        printf("%s %.1f %%\n", guesses[i].label ? guesses[i].label : "?", 100.0 * guesses[i].probability);
    xnorpp_free(model);
    free(pixels);
    return error.status != XNORPP_OK;
}
