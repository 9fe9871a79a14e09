/* The simulated nvidia-cuda-mps-control: a control daemon with `-d`, else the program that asks one.
 *
 * Both meet in the socket `control` of CUDA_MPS_PIPE_DIRECTORY. The daemon has one server, as long as it has clients; a process
 * is a client while it keeps a connection open on which it said "client" (draco_local.simulator.mps does that). Commands and
 * answers are those of NVIDIA's documentation; texts are from logs that people published, except where "assumed" is said.
 * A client that ends without "bye" after it said "busy" leaves its server in FAULT until all of its clients have left.
 * Of protocol 3 (release 615) it knows the option and the help text, by which programs find out; its commands are not simulated.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { MOST_CLIENTS = 60, MOST_DEVICES = 16 };

static struct { int socket, is_client, is_busy; pid_t pid; } connections[MOST_CLIENTS + 8];
static int count, is_faulty;
static pid_t server;
static double percentage = 100;
static char limits[MOST_DEVICES][32], devices[MOST_DEVICES][64];
static int device_count;

static const char *folder(void) {
    const char *named = getenv("CUDA_MPS_PIPE_DIRECTORY");
    return named && *named ? named : "/tmp/nvidia-mps";
}

static int enter(void) { /* a socket's path is short, its folder's may not be */
    return chdir(folder());
}

static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "control"};

static int connected(void) {
    int one = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (one >= 0 && connect(one, (const struct sockaddr *)&address, sizeof address) != 0) {
        close(one);
        return -1;
    }
    return one;
}

static int clients(void) {
    int found = 0;
    for (int i = 0; i < count; i++) found += connections[i].is_client;
    return found;
}

/* The server is a process of its own that does nothing. */
static void start_server(void) {
    if (server) return;
    server = fork();
    if (server == 0) {
        for (int i = 3; i < 256; i++) close(i);
        for (;;) pause();
    }
    is_faulty = 0;
}

static void end_server(void) {
    if (server > 0) kill(server, SIGKILL);
    server = is_faulty = 0;
}

static int device(const char *name) {
    char *rest;
    long number = strtol(name, &rest, 10);
    if (*name && !*rest) return number >= 0 && number < device_count ? (int)number : -1;
    for (int i = 0; i < device_count; i++)
        if (strcmp(devices[i], name) == 0) return i;
    return -1;
}

/* Release 595 was seen to print limits from 1 GiB on in whole GiB; from which release on that is so is estimated. */
static void print_limit(FILE *out, const char *limit) {
    long mib = atol(limit);
    if (RELEASE >= 595 && mib >= 1024 && strchr(limit, 'M')) fprintf(out, "%ldG\n", mib / 1024);
    else fprintf(out, "%s\n", limit);
}

static void answer(char *line, FILE *out) {
    char *rest = NULL, *command = strtok_r(line, " \n", &rest);
    char *one = strtok_r(NULL, " \n", &rest), *two = strtok_r(NULL, " \n", &rest);
    int is_servers = one && server > 0 && atol(one) == server;
    if (!command) return;
    if (strcmp(command, "get_default_active_thread_percentage") == 0) fprintf(out, "%.1f\n", percentage);
    else if (strcmp(command, "set_default_active_thread_percentage") == 0 && one) {
        double wanted = atof(one);
        if (wanted < 0 || wanted > 100) fprintf(out, "Invalid argument\n"); /* assumed */
        else fprintf(out, "%.1f\n", percentage = wanted);
    } else if (strcmp(command, "set_default_device_pinned_mem_limit") == 0 && two) {
        if (device(one) < 0) fprintf(out, "Invalid device\n"); /* assumed */
        else snprintf(limits[device(one)], sizeof limits[0], "%s", two);
    } else if (strcmp(command, "get_default_device_pinned_mem_limit") == 0 && one) {
        if (device(one) < 0) fprintf(out, "Invalid device\n"); /* assumed */
        else print_limit(out, limits[device(one)]);
    } else if (strcmp(command, "get_server_list") == 0) {
        if (server > 0) fprintf(out, "%d\n", server);
    } else if (strcmp(command, "get_server_status") == 0 && one) {
        fprintf(out, "%s\n", !is_servers ? "Server not found" : is_faulty ? "FAULT" : "ACTIVE");
    } else if (strcmp(command, "get_client_list") == 0 && one) {
        for (int i = 0; i < count && is_servers; i++)
            if (connections[i].is_client) fprintf(out, "%d\n", connections[i].pid);
    } else if (strcmp(command, "ps") == 0) {
        fprintf(out, "PID       ID    SERVER    DEVICE             NAMESPACE   COMMAND\n");
        for (int i = 0; i < count; i++)
            if (connections[i].is_client)
                fprintf(out, "%-9d %-5d %-9d %-18s %-11s %s\n", connections[i].pid, i, server, devices[0], "", "");
    } else if (strcmp(command, "quit") == 0) {
        end_server();
        fflush(out);
        unlink("control");
        exit(0);
    } else if (strcmp(command, "fault") == 0) is_faulty = server > 0; /* the simulator's own */
    else fprintf(out, "Unknown command: %s\n", command); /* assumed */
}

/* One line of a connection: of a client, or of the program that asks. */
static void hear(int index, char *line) {
    int one = connections[index].socket;
    if (strcmp(line, "client\n") == 0) {
        if (is_faulty) {
            dprintf(one, "CUDA_ERROR_MPS_SERVER_NOT_READY\n");
            return;
        }
        connections[index].is_client = 1;
        start_server();
        dprintf(one, "ok\n");
    } else if (strcmp(line, "busy\n") == 0 || strcmp(line, "bye\n") == 0) {
        connections[index].is_busy = line[1] == 'u';
        dprintf(one, "ok\n");
    } else {
        char *text = NULL;
        size_t length = 0;
        FILE *out = open_memstream(&text, &length);
        answer(line, out);
        fclose(out);
        if (write(one, text, length) < 0) errno = 0;
        free(text);
        shutdown(one, SHUT_WR);
    }
}

static void ended(int index) {
    if (connections[index].is_busy) is_faulty = 1;
    close(connections[index].socket);
    connections[index] = connections[--count];
    if (server && clients() == 0 && is_faulty) end_server();
}

static void serve(int listener) {
    for (;;) {
        struct pollfd waits[MOST_CLIENTS + 9] = {{.fd = listener, .events = POLLIN}};
        for (int i = 0; i < count; i++) waits[i + 1] = (struct pollfd){.fd = connections[i].socket, .events = POLLIN};
        int before = count;
        if (poll(waits, (nfds_t)(before + 1), -1) < 0) continue;
        for (int i = before - 1; i >= 0; i--) {
            char line[512];
            if (!waits[i + 1].revents) continue;
            ssize_t length = read(connections[i].socket, line, sizeof line - 1);
            if (length <= 0) ended(i);
            else {
                line[length] = 0;
                hear(i, line);
            }
        }
        if (waits[0].revents & POLLIN && count < MOST_CLIENTS + 8) {
            int one = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            struct ucred peer = {0};
            socklen_t size = sizeof peer;
            if (one < 0) continue;
            getsockopt(one, SOL_SOCKET, SO_PEERCRED, &peer, &size);
            connections[count].socket = one;
            connections[count].is_client = connections[count].is_busy = 0;
            connections[count++].pid = peer.pid;
        }
    }
}

static int start_daemon(void) {
    char *named = getenv("CUDA_VISIBLE_DEVICES"), *rest = NULL;
    int there;
    mkdir(folder(), 0777);
    if (enter() != 0) {
        fprintf(stderr, "Failed to create control files: %s\n", strerror(errno)); /* assumed */
        return 1;
    }
    if ((there = connected()) >= 0) {
        fprintf(stderr, "An instance of this daemon is already running\n");
        return 1;
    }
    for (char *each = named ? strtok_r(strdup(named), ",", &rest) : NULL; each && device_count < MOST_DEVICES;
         each = strtok_r(NULL, ",", &rest))
        snprintf(devices[device_count++], sizeof devices[0], "%s", each);
    unlink("control");
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    umask(0);
    if (bind(listener, (const struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 64) != 0) {
        fprintf(stderr, "Failed to create control files: %s\n", strerror(errno)); /* assumed */
        return 1;
    }
    if (fork() != 0) _exit(0);
    setsid();
    int nothing = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++) dup2(nothing, i);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    serve(listener);
    return 0;
}

static int ask(void) {
    char line[512], text[4096];
    while (fgets(line, sizeof line, stdin)) {
        ssize_t length;
        int one = enter() == 0 ? connected() : -1;
        if (one < 0) {
            fprintf(stderr, "Cannot find MPS control daemon process\n");
            return 1;
        }
        if (write(one, line, strlen(line)) < 0) return 1;
        while ((length = read(one, text, sizeof text)) > 0) fwrite(text, 1, (size_t)length, stdout);
        close(one);
    }
    return 0;
}

static int help(void) {
    printf("Usage: nvidia-cuda-mps-control [options] [<module> <verb> [arguments]]\n"
           "Modules: server, namespace, client, device, sm-partition, feature, memacct, context-share\n"); /* assumed */
    return 0;
}

int main(int argc, char **argv) {
    int is_daemon = 0, is_help = 0;
    for (int i = 1; i < argc; i++) {
        is_daemon |= strcmp(argv[i], "-d") == 0;
        is_help |= strcmp(argv[i], "-h") == 0;
        if (strcmp(argv[i], "-p") == 0 && RELEASE < 615) {
            fprintf(stderr, "nvidia-cuda-mps-control: invalid option -- 'p'\n"); /* assumed */
            return 1;
        }
    }
    return is_help ? help() : is_daemon ? start_daemon() : ask();
}
