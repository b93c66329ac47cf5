/*
 * sor: successive over-relaxation of Laplace's equation in red-black order. Points are coloured as a chess board; all red
 * ones are renewed from black ones, then all black ones from red ones, with a barrier after each colour.
 *
 * Within a colour the order does not matter, so a run on one processor gives the same numbers to the last bit, and
 * process 0 makes that run in its private memory to compare.
 */
#include "program.h"

#define OVER 1.25f

/*
 * One rim is hot, one warm, the rest is at ten degrees. Not at zero: heat that arrives there would be too little for a normal
 * number at first, and processors take a hundred times as long over those, some rows at a time.
 */
static void start(float *plate, long width, long from, long to)
{
    long i, j;
    for (i = from; i < to; i++)
        for (j = 0; j < width; j++)
            plate[i * width + j] = i == 0 ? 100.0f : j == 0 ? 50.0f : 10.0f;
}

static void renew(float *plate, long width, long from, long to, long colour)
{
    long i, j;
    for (i = from; i < to; i++) {
        float *row = plate + i * width;
        for (j = 1 + ((i + 1 + colour) & 1); j < width - 1; j += 2) {
            float mean = 0.25f * (row[j - width] + row[j + width] + row[j - 1] + row[j + 1]);
            row[j] += OVER * (mean - row[j]);
        }
    }
}

static int same_as_alone(const float *plate, long rows, long width, long steps)
{
    float *alone = malloc((size_t)(rows * width) * sizeof *alone);
    long step;
    int same;
    if (alone == NULL)
        return 0;
    start(alone, width, 0, rows);
    for (step = 0; step < 2 * steps; step++)
        renew(alone, width, 1, rows - 1, step % 2);
    same = memcmp(alone, plate, (size_t)(rows * width) * sizeof *alone) == 0;
    free(alone);
    return same;
}

int main(int argc, char **argv)
{
    long size[3] = {256, 256, 20}, rows, width, step;
    float *plate;
    double started, seconds;
    struct part part;
    long from, to;

    number_options(argc, argv, "nmt", size);
    rows = size[0] + 2;
    width = size[1] + 2;
    jia_init(argc, argv);
    part = my_part(rows);
    plate = alloc_rows(rows, (size_t)width * sizeof *plate);
    start(plate, width, part.begin, part.end);
    jia_barrier();

    from = part.begin > 0 ? part.begin : 1;
    to = part.end < rows ? part.end : rows - 1;
    started = jia_clock();
    for (step = 0; step < 2 * size[2]; step++) {
        renew(plate, width, from, to, step % 2);
        jia_barrier();
    }
    seconds = jia_clock() - started;
    return finish("sor", size[0], seconds, jiapid != 0 || same_as_alone(plate, rows, width, size[2]));
}
