// A packed network on an Arduino or ESP32 board: type 64 numbers from 0 to 255 (an 8x8 image, row by row) into the serial
// monitor, and read which digit they show. Export the network into this sketch's folder first:
//     xnorpp export c digits.xnor -o digits --name network --fixed
// The board compiles network.c by itself. An ESP32 has a floating-point unit: leave --fixed out for float there.
#include "network.h"

static uint8_t image[NETWORK_INPUT_COUNT];

void setup()
{
    Serial.begin(115200);
    Serial.setTimeout(10000);
    Serial.print("memory of the network: ");
    Serial.println(NETWORK_ARENA_BYTES);
}

void loop()
{
    if (!Serial.available())
        return;
    for (int i = 0; i < NETWORK_INPUT_COUNT; i++)
        image[i] = (uint8_t)Serial.parseInt();
    const unsigned long start = micros();
    const int32_t best = network_classify(image);
    const unsigned long took = micros() - start;
    Serial.print(network_labels[best]);
    Serial.print("  (");
    Serial.print(took);
    Serial.println(" microseconds)");
}
