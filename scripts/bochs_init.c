// The only process of the emulated machine: runs /test with the arguments in /args, sends what it prints to the
// emulator's debug port, ends with its exit code, and switches the machine off.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEBUG_PORT 0xe9
#define POWER_PORT 0x8900

static void say(const char* text, int n) { outsb(DEBUG_PORT, text, n); }

int main(void) {
  static char buffer[65536];
  char* argv[64] = {"/test"};
  int argc = 1, out[2], status = 0, n;
  mkdir("/proc", 0755), mkdir("/sys", 0755), mkdir("/dev", 0755);
  mount("proc", "/proc", "proc", 0, 0);
  mount("sysfs", "/sys", "sysfs", 0, 0);
  mount("devtmpfs", "/dev", "devtmpfs", 0, 0);
  iopl(3);
  int file = open("/args", O_RDONLY);
  n = file < 0 ? 0 : (int)read(file, buffer, sizeof buffer - 1);
  for (char* p = buffer; p < buffer + n && argc < 63; p += strlen(p) + 1) argv[argc++] = p;
  argv[argc] = 0;
  say("@@BEGIN@@\n", 10);
  if (pipe(out) != 0) return 1;
  const int child = fork();
  if (child == 0) {
    dup2(out[1], 1), dup2(out[1], 2), close(out[0]);
    iopl(0);
    execv(argv[0], argv);
    _exit(127);
  }
  close(out[1]);
  while ((n = (int)read(out[0], buffer, sizeof buffer)) > 0) say(buffer, n);
  waitpid(child, &status, 0);
  n = sprintf(buffer, "\n@@CODE=%d@@\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  say(buffer, n);
  outsb(POWER_PORT, "Shutdown", 8);
  sleep(2);
  reboot(RB_POWER_OFF);
  for (;;) pause();
}
