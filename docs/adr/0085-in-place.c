// The prototype of ADR 0085: objects mapped where they lie together, 4,096 bytes of them on a page, and what has no place there on a page of its own. Reads only, with perfect foresight,
// without a log; where the second number is 0, the peer: the file itself, mapped with MADV_RANDOM. Not part of the product. Run it in a cgroup with the limit that is to be.
//
// cc -O2 -o in-place 0085-in-place.c -lpthread -lm
// ./in-place FILE OBJECTS BYTES MIB_IN_PLACE PAGES_THAT_STAY PAGES_THAT_PASS THREADS SECONDS_WARM SECONDS    (OBJECTS a power of two; the file is written where it is too short)
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <unistd.h>
#include <fcntl.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <linux/userfaultfd.h>
#include <stdatomic.h>
#define PG 4096ul
typedef uint64_t u64; typedef uint32_t u32; typedef uint8_t u8;
static u64 N; static u32 OB; static u64 M; static u32 PER; // objects, bytes, pages of F, slots per page
static char *base; static char *F; static int uffd, fd, pidfd;
static u32 *owner; static _Atomic u8 *st; // ABSENT 0 FILLING 1 THERE 2 LEAVING 3 INPLACE 4 | STAYS 8
static atomic_long there; static long there_max; static pthread_mutex_t hand_m = PTHREAD_MUTEX_INITIALIZER;
static u64 ring_n; static u32 *ring; static atomic_ulong ring_put, ring_get; // FIFO of passing pages
static atomic_ulong faults, reads, conts;
static double theta=0.99, zetan, zeta2, alpha, eta;
static inline u64 rng(u64 *s){ u64 x=*s; x^=x<<13; x^=x>>7; x^=x<<17; return *s=x; }
static u64 zipf(u64*s){ double u=(rng(s)>>11)*0x1.0p-53; double uz=u*zetan; if(uz<1)return 0; if(uz<1+pow(.5,theta))return 1; u64 r=(u64)(N*pow(eta*u-eta+1,alpha)); return r>=N?N-1:r; }
static inline u64 scatter(u64 r){ return (r*0x9E3779B97F4A7C15ull>>20)*0 + (r*2654435761ull + 12345)%N; } // N power of two: odd multiplier permutes
static inline u64 slot(u64 i){ return (i%M)*PER + (i/M)%PER; }
static inline u32 off(u64 i){ return ((i/M)%PER)*OB; }
static void die(const char*w){ perror(w); _exit(1);} 
static void evict(void){
  u32 b[128]; int n=0; struct iovec v[128];
  pthread_mutex_lock(&hand_m);
  while(n<128){ u64 g=ring_get; if(g>=ring_put) break; b[n++]=ring[g%ring_n]; ring_get=g+1; }
  pthread_mutex_unlock(&hand_m);
  int k=0; for(int i=0;i<n;i++){ // wait till there
    while(st[b[i]]!=2) usleep(20);
    st[b[i]]=3; v[k].iov_base=base+(u64)b[i]*PG; v[k].iov_len=PG; k++; }
  if(k && syscall(SYS_process_madvise,pidfd,v,k,MADV_DONTNEED,0)<0) { for(int i=0;i<k;i++) madvise(v[i].iov_base,PG,MADV_DONTNEED); }
  for(int i=0;i<n;i++) st[b[i]]=0;
  there-=n;
}
static void on_bus(int s, siginfo_t*si, void*c){
  u64 a=(u64)si->si_addr & ~(PG-1); u64 i=(a-(u64)base)/PG;
  if(a<(u64)base||i>=N){ write(2,"alien\n",6); _exit(1);} 
  faults++;
  for(;;){ u8 x=st[i];
    if((x&7)==4){ struct uffdio_continue c={.range={a,PG}}; if(ioctl(uffd,UFFDIO_CONTINUE,&c)<0 && errno!=EEXIST) die("continue"); conts++; return; }
    if((x&7)==2) return;
    if((x&7)==0){ u8 e=x; if(atomic_compare_exchange_strong(&st[i],&e,(x&8)|1)) {
      if(!(x&8)) { if(there++>=there_max) evict(); }
      static __thread char buf[PG*2] __attribute__((aligned(4096))); memset(buf,0,PG);
      reads++;
      u64 lies=i*OB; u64 al=lies&~511ul; u64 len=((lies+OB+511)&~511ul)-al;
      static __thread char rb[PG*2] __attribute__((aligned(4096)));
      if(pread(fd,rb,len,al)!=(ssize_t)len) die("pread");
      memcpy(buf+off(i),rb+(lies-al),OB);
      struct uffdio_copy c={.dst=a,.src=(u64)buf,.len=PG,.mode=0}; if(ioctl(uffd,UFFDIO_COPY,&c)<0 && errno!=EEXIST) die("copy");
      st[i]=(x&8)|2;
      if(!(x&8)){ pthread_mutex_lock(&hand_m); ring[ring_put%ring_n]=i; ring_put++; pthread_mutex_unlock(&hand_m);} 
      return; } continue; }
    usleep(20);
  }
}
static atomic_int phase; static atomic_ulong ops; static u64 bad;
static char*mapped;
static void*run(void*p){ u64 s=0x1234567+(u64)p*7919; u64 n=0; 
  while(phase<2){ u64 i=scatter(zipf(&s)); volatile u64*w=mapped?(u64*)(mapped+i*OB):(u64*)(base+i*PG+off(i)); u64 v=*w; if(v!=i*31+7) bad++; n++; if((n&63)==0) ops+=64; }
  return 0; }
int main(int c,char**v){
  // inplace FILE objects bytes Fmib stay passing threads warm secs
  N=strtoull(v[2],0,0); OB=atoi(v[3]); M=strtoull(v[4],0,0)*256; long stay=atol(v[5]); long passing=atol(v[6]); int T=atoi(v[7]); int warm=atoi(v[8]), secs=atoi(v[9]);
  PER=PG/OB; 
  fd=open(v[1],O_RDWR|O_DIRECT|O_CREAT,0600); if(fd<0) die("open");
  if(lseek(fd,0,SEEK_END)<(off_t)(N*OB)){ char*b=aligned_alloc(4096,1<<20); for(u64 at=0;at<N*OB;at+=1<<20){ for(u64 o=0;o<1<<20;o+=OB){ memset(b+o,0,OB); *(u64*)(b+o)=((at+o)/OB)*31+7; } if(pwrite(fd,b,1<<20,at)!=1<<20) die("pwrite"); } fsync(fd); free(b);} 
  if(M==0){ // the peer: the file itself, mapped
    zetan=0; for(u64 i=1;i<=N;i++) zetan+=pow(1.0/i,theta); zeta2=1+pow(.5,theta); alpha=1/(1-theta); eta=(1-pow(2.0/N,1-theta))/(1-zeta2/zetan);
    int b=open(v[1],O_RDONLY); char*f=mmap(0,N*OB,PROT_READ,MAP_SHARED,b,0); madvise(f,N*OB,MADV_RANDOM); mapped=f;
    pthread_t t[64]; for(long i=0;i<T;i++) pthread_create(&t[i],0,run,(void*)(i+1));
    for(int k=0;k<warm+secs;k++){ u64 o=ops; struct timespec a,b; clock_gettime(1,&a); sleep(1); clock_gettime(1,&b); double d=(b.tv_sec-a.tv_sec)+(b.tv_nsec-a.tv_nsec)/1e9; printf("%c %.1f k/s\n",k<warm?'w':'m',(ops-o)/d/1e3); fflush(stdout);} 
    phase=2; for(int i=0;i<T;i++) pthread_join(t[i],0); return 0; }
  int m=memfd_create("f",0); if(ftruncate(m,M*PG)) die("ftruncate");
  F=mmap(0,M*PG,PROT_READ|PROT_WRITE,MAP_SHARED,m,0); if(F==MAP_FAILED) die("F");
  memset(F,0,M*PG);
  base=mmap(0,(N+M)*PG,PROT_NONE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE,-1,0); if(base==MAP_FAILED) die("base");
  uffd=syscall(SYS_userfaultfd,O_CLOEXEC|1); if(uffd<0) die("uffd");
  struct uffdio_api api={.api=UFFD_API,.features=UFFD_FEATURE_SIGBUS|UFFD_FEATURE_MINOR_SHMEM}; if(ioctl(uffd,UFFDIO_API,&api)<0) die("api");
  u64 W=(N+M-1)/M;
  for(u64 w=0;w<W;w++){ char*a=base+w*M*PG; if(mmap(a,M*PG,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_FIXED|MAP_NORESERVE,m,0)==MAP_FAILED) die("window");
    struct uffdio_register r={.range={(u64)a,M*PG},.mode=UFFDIO_REGISTER_MODE_MISSING|UFFDIO_REGISTER_MODE_MINOR}; if(ioctl(uffd,UFFDIO_REGISTER,&r)<0) die("register"); }
  pidfd=syscall(SYS_pidfd_open,getpid(),0);
  u64 slots=M*PER; owner=malloc(slots*4); memset(owner,0xff,slots*4); st=calloc(N,1);
  zetan=0; for(u64 i=1;i<=N;i++) zetan+=pow(1.0/i,theta); zeta2=1+pow(.5,theta); alpha=1/(1-theta); eta=(1-pow(2.0/N,1-theta))/(1-zeta2/zetan);
  u64 won=0; double mass=0, massl=0; long st_n=0;
  for(u64 r=0;r<N;r++){ u64 i=scatter(r); u64 s=slot(i); if(owner[s]==~0u){ owner[s]=i; st[i]=4; won++; mass+=pow(1.0/(r+1),theta)/zetan; } else if(st_n<stay){ st[i]=8; st_n++; massl+=pow(1.0/(r+1),theta)/zetan; } }
  for(u64 s=0;s<slots;s++) if(owner[s]!=~0u){ u64 i=owner[s]; char*at=F+(s/PER)*PG+(s%PER)*OB; *(u64*)at=i*31+7; }
  fprintf(stderr,"windows %lu slots %lu won %lu mass in place %.3f stay %.3f -> reads %.3f\n",W,slots,won,mass,massl,1-mass-massl);
  there_max=passing; ring_n=passing*4+4096; ring=malloc(ring_n*4);
  stack_t ss={.ss_sp=malloc(1<<16),.ss_size=1<<16};(void)ss;
  struct sigaction sa={.sa_sigaction=on_bus,.sa_flags=SA_SIGINFO|SA_NODEFER}; sigaction(SIGBUS,&sa,0);
  pthread_t t[64]; for(long i=0;i<T;i++) pthread_create(&t[i],0,run,(void*)(i+1));
  for(int k=0;k<warm+secs;k++){ u64 o=ops,f=faults,r=reads,cc=conts; struct timespec a,b; clock_gettime(1,&a); sleep(1); clock_gettime(1,&b); double d=(b.tv_sec-a.tv_sec)+(b.tv_nsec-a.tv_nsec)/1e9; u64 n=ops-o; printf("%c %.1f k/s faults %.3f reads %.3f cont %.3f\n",k<warm?'w':'m',n/d/1e3,(double)(faults-f)/n,(double)(reads-r)/n,(double)(conts-cc)/n); fflush(stdout);} 
  phase=2; for(int i=0;i<T;i++) pthread_join(t[i],0); if(bad) printf("BAD %lu\n",bad); 
  char cmd[200]; sprintf(cmd,"grep -E 'VmPTE|RssAnon|RssShmem|VmRSS' /proc/%d/status; cat /sys/fs/cgroup$(cut -d: -f3 /proc/%d/cgroup)/memory.peak 2>/dev/null",getpid(),getpid()); system(cmd);
}
