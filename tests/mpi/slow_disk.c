/* A disk that takes long to sync the files of ranks in checkpoints that are being written, in the process of one rank: preloaded.
 * SLOW_SECONDS says how long, SLOW_RANK for whom. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fsync(int file) {
  static int (*real)(int);
  char link[64], path[4096];
  const char *seconds = getenv("SLOW_SECONDS"), *whose = getenv("SLOW_RANK"), *own = getenv("OMPI_COMM_WORLD_RANK");
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  if (seconds && whose && own && strcmp(whose, own) == 0 && strstr(path, ".part/rank-")) usleep(1e6 * atof(seconds));
  if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return real(file);
}
