/* The header after the macros that other headers are known to define: <windows.h> with what it
 * draws in (min, max, near, far, small, interface, ...), <complex.h> (I), <termios.h> (B0),
 * <sys/sysmacros.h> (major, minor), X11 (Status, None), GNU dialects (linux, unix), and the short
 * names that projects give themselves. Standard headers come first: they needn't survive this.
 * Each macro stands for what can't be compiled. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A vector path includes the intrinsics' header, which is no guest here either. */
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define HOSTILE ) hostile macro (
/* <windows.h> */
#undef near
#undef far
#undef min
#undef max
#define min       HOSTILE
#define max       HOSTILE
#define near      HOSTILE
#define far       HOSTILE
#define small     HOSTILE
#define hyper     HOSTILE
#define interface HOSTILE
#define pascal    HOSTILE
#define cdecl     HOSTILE
#define huge      HOSTILE
#define IN        HOSTILE
#define OUT       HOSTILE
#define OPTIONAL  HOSTILE
#define CONST     HOSTILE
#define VOID      HOSTILE
#define ERROR     HOSTILE
#define DELETE    HOSTILE
#define STRICT    HOSTILE
#define TRUE      HOSTILE
#define FALSE     HOSTILE
#define BOOL      HOSTILE
#define INFINITE  HOSTILE
#define NO_ERROR  HOSTILE
#define environ   HOSTILE
#define grp1      HOSTILE
#define rad1      HOSTILE
/* <complex.h>, <termios.h>, <sys/sysmacros.h>, X11, GNU dialects */
#undef I
#undef complex
#define I       HOSTILE
#define complex HOSTILE
#define B0      HOSTILE
#define ECHO    HOSTILE
#define PAGESIZE HOSTILE
#undef major
#undef minor
#define major   HOSTILE
#define minor   HOSTILE
#define Status  HOSTILE
#define None    HOSTILE
#define Success HOSTILE
#define Always  HOSTILE
#undef linux
#undef unix
#undef i386
#undef arm
#undef mips
#undef sun
#define linux HOSTILE
#define unix  HOSTILE
#define i386  HOSTILE
#define arm   HOSTILE
#define mips  HOSTILE
#define sun   HOSTILE
/* Projects */
#define ABS      HOSTILE
#define MIN      HOSTILE
#define MAX      HOSTILE
#define ALIGN    HOSTILE
#define BLOCK    HOSTILE
#define TILE     HOSTILE
#define LANES    HOSTILE
#define UNROLL   HOSTILE
#define PREFETCH HOSTILE
#define INLINE   HOSTILE
#define TRY      HOSTILE
#define MAP      HOSTILE
#define EACH     HOSTILE
#define likely   HOSTILE
#define unlikely HOSTILE
#define swap     HOSTILE
#define check    HOSTILE
#define require  HOSTILE
#define verify   HOSTILE
#define A        HOSTILE
#define B        HOSTILE
#define C        HOSTILE
#define D        HOSTILE
#define F        HOSTILE
#define G        HOSTILE
#define H        HOSTILE
#define K        HOSTILE
#define L        HOSTILE
#define M        HOSTILE
#define N        HOSTILE
#define P        HOSTILE
#define Q        HOSTILE
#define S        HOSTILE
#define T        HOSTILE
#define U        HOSTILE
#define V        HOSTILE
#define W        HOSTILE
#define X        HOSTILE
#define Y        HOSTILE
#define Z        HOSTILE

#include "all_functions.c"
