/* Classifies one image and prints its label. Export the network first:
       xnorpp export c cifar10-resnet20 -o . --name network */
#include "console.h"
#include "network.h"

int main(void)
{
    static uint8_t image[NETWORK_INPUT_COUNT]; /* from your camera: rows, columns, channels */
    for (int32_t i = 0; i < NETWORK_INPUT_COUNT; i++)
        image[i] = (uint8_t)(i * 7);
    print("this image looks like: ");
    print(network_labels[network_classify(image)]);
    print("\n");
    finish();
    return 0;
}
