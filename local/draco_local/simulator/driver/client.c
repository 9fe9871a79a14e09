/* The simulated libnvidia-ml: every function sends its arguments to the service and copies back what comes behind its pointers.
 *
 * A request is a length, a number for this process, the function's name, and its arguments; an answer is a length, the return
 * code, and for each pointer the bytes to write there. `functions.h` stands for the generated code: the table, and one function
 * for each entry. A connection serves one call at a time, so that one thread may wait for events while others ask.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { UNINITIALIZED = 1, DRIVER_NOT_LOADED = 9, OUT_OF_MEMORY = 20, UNKNOWN = 999 };
enum kind { HANDLE, NUMBER, TEXT, STRUCT, VERSIONED, ARRAY, WRITTEN };

struct parameter {
    enum kind kind;
    uint32_t size, counted_by;
};

struct function {
    const char *name;
    int count;
    struct parameter parameters[6];
};

#define MOST_IDLE 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int idle[MOST_IDLE], idle_count;
static pid_t owner; /* of the idle connections: a child of fork has a session of its own */
static uint64_t process;

static int connected(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = secure_getenv("DRACO_SIMULATED_DRIVER");
    strncpy(address.sun_path, path ? path : SOCKET, sizeof address.sun_path - 1);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection >= 0 && connect(connection, (struct sockaddr *)&address, sizeof address) != 0) {
        close(connection);
        connection = -1;
    }
    return connection;
}

static int taken(int *reused, uint64_t *number) {
    int connection = -1;
    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        while (idle_count) close(idle[--idle_count]);
        owner = getpid();
        process = (uint64_t)owner << 32 ^ (uint64_t)now.tv_sec << 20 ^ (uint64_t)now.tv_nsec;
    }
    if (idle_count) connection = idle[--idle_count];
    *number = process;
    pthread_mutex_unlock(&lock);
    *reused = connection >= 0;
    return *reused ? connection : connected();
}

static void given_back(int connection) {
    pthread_mutex_lock(&lock);
    if (idle_count < MOST_IDLE) {
        idle[idle_count++] = connection;
        connection = -1;
    }
    pthread_mutex_unlock(&lock);
    if (connection >= 0) close(connection);
}

/* The library may be unloaded, as after an upgrade of the driver: nothing of it stays behind. */
__attribute__((destructor)) static void unload(void) {
    while (idle_count) close(idle[--idle_count]);
}

static int sent(int connection, const char *bytes, size_t length) {
    while (length) {
        ssize_t n = send(connection, bytes, length, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        bytes += n, length -= (size_t)n;
    }
    return 1;
}

static int received(int connection, void *bytes, size_t length) {
    char *at = bytes;
    while (length) {
        ssize_t n = recv(connection, at, length, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n, length -= (size_t)n;
    }
    return 1;
}

static uint32_t length_behind(const struct parameter *parameter, const uint64_t *values, int index) {
    const char *pointer = (const char *)(uintptr_t)values[index];
    switch (parameter->kind) {
    case TEXT: return (uint32_t)strlen(pointer);
    case STRUCT: return parameter->size;
    case VERSIONED: {
        uint32_t version;
        memcpy(&version, pointer, sizeof version);
        uint32_t size = version & 0xffffff;
        return size < sizeof version ? sizeof version : size > 65536 ? sizeof version : size;
    }
    case ARRAY: return parameter->size * (uint32_t)values[parameter->counted_by];
    default: return 0;
    }
}

/* A pointer travels as a byte that says whether there is one, a length, and as many bytes. */
static char *request(const struct function *function, const uint64_t *values, uint64_t number, size_t *length) {
    size_t name = strlen(function->name), size = 4 + 8 + 4 + name;
    for (int i = 0; i < function->count; i++)
        size += 8 + (function->parameters[i].kind > NUMBER && values[i]
                         ? length_behind(&function->parameters[i], values, i) : 0);
    char *bytes = malloc(size), *at = bytes + 4;
    if (!bytes) return NULL;
#define PUT(source, count) (memcpy(at, source, count), at += (count))
    PUT(&number, 8);
    uint32_t short_name = (uint32_t)name;
    PUT(&short_name, 4);
    PUT(function->name, name);
    for (int i = 0; i < function->count; i++) {
        const struct parameter *parameter = &function->parameters[i];
        if (parameter->kind <= NUMBER) {
            PUT(&values[i], 8);
            continue;
        }
        char there = values[i] != 0;
        uint32_t behind = there ? length_behind(parameter, values, i) : 0;
        PUT(&there, 1);
        PUT(&behind, 4);
        if (behind) PUT((const void *)(uintptr_t)values[i], behind);
    }
    uint32_t rest = (uint32_t)(at - bytes - 4);
    memcpy(bytes, &rest, 4);
    *length = (size_t)(at - bytes);
    return bytes;
}

/* The return code, with everything written; -1 when the connection broke before the answer was there. */
static int answered(int connection, const struct function *function, const uint64_t *values) {
    uint32_t length;
    if (!received(connection, &length, 4)) return -1;
    char *bytes = malloc(length), *at = bytes;
    if (!bytes || !received(connection, bytes, length)) {
        free(bytes);
        return -1;
    }
    int32_t code;
    memcpy(&code, at, 4), at += 4;
    for (int i = 0; i < function->count && at < bytes + length; i++) {
        if (function->parameters[i].kind < STRUCT) continue;
        uint32_t behind;
        memcpy(&behind, at, 4), at += 4;
        if (behind && values[i]) memcpy((void *)(uintptr_t)values[i], at, behind);
        at += behind;
    }
    free(bytes);
    return code;
}

static int call(const struct function *function, const uint64_t *values) {
    for (;;) {
        int reused;
        uint64_t number;
        int connection = taken(&reused, &number);
        if (connection < 0) return DRIVER_NOT_LOADED;
        size_t length;
        char *bytes = request(function, values, number, &length);
        if (!bytes) {
            close(connection);
            return OUT_OF_MEMORY;
        }
        int code = sent(connection, bytes, length) ? answered(connection, function, values) : -1;
        free(bytes);
        if (code >= 0) {
            given_back(connection);
            return code;
        }
        close(connection);
        if (!reused) return UNKNOWN; /* a reused one breaks when the service restarts, which ends the session */
    }
}

#include "functions.h"
