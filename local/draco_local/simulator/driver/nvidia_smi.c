/* The simulated nvidia-smi: sends its arguments to the service, prints the text that comes back and exits with its status.
 *
 * Follows client.c and a table of that one function. Linked statically, so that it runs in every container, as the node's
 * containers have it too. The real one loads NVML: where that is neither preloaded nor in a library folder, this one fails, too.
 */
#include <stdio.h>

static int finds_nvml(void) {
    char *preloaded = getenv("LD_PRELOAD"), *rest = NULL;
    for (char *each = preloaded ? strtok_r(preloaded, ": ", &rest) : NULL; each; each = strtok_r(NULL, ": ", &rest))
        if (strstr(each, "/libnvidia-ml.so.") && access(each, R_OK) == 0) return 1;
    return access("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", R_OK) == 0;
}

/* A driver root may have a /dev of its own, which needs no variable: `<root>/usr/bin/nvidia-smi` looks there first. */
static void use_socket_of_root(void) {
    static const char program[] = "/usr/bin/nvidia-smi", dev[] = "/dev/nvidia-simulated";
    char path[4096 + sizeof dev];
    ssize_t length = readlink("/proc/self/exe", path, 4096) - (ssize_t)(sizeof program - 1);
    if (length < 0 || memcmp(path + length, program, sizeof program - 1) != 0) return;
    memcpy(path + length, dev, sizeof dev);
    if (access(path, F_OK) == 0) setenv("DRACO_SIMULATED_DRIVER", path, 0);
}

int main(int argc, char **argv) {
    char arguments[4096] = "", text[65536] = "";
    uint32_t status = 0;
    if (argc == 1) {
        puts("NVIDIA-SMI: these GPUs are simulated");
        return 0;
    }
    if (!finds_nvml()) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
             "Driver is properly installed and present in your system.");
        return 12;
    }
    for (int i = 1; i < argc; i++) {
        if (strlen(arguments) + strlen(argv[i]) + 2 > sizeof arguments) return 2;
        strcat(strcat(arguments, i > 1 ? "\n" : ""), argv[i]);
    }
    use_socket_of_root();
    const uint64_t values[] = {(uintptr_t)arguments, (uintptr_t)text, sizeof text, (uintptr_t)&status};
    if (call(&table[0], values) != 0) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
             "NVIDIA driver is installed and running.");
        return DRIVER_NOT_LOADED;
    }
    fputs(text, stdout);
    return (int)status;
}
