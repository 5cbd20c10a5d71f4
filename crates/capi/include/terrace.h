/* Terrace: memory that is larger than DRAM. Made by cbindgen from crates/capi/src; do not edit.
 *
 * A pool is a file on an SSD and a bound on DRAM. Memory from it is plain memory: what is not in DRAM is read when it is touched.
 *
 * - Functions that return int return 0, or -1 with errno set. Functions that return a pointer return NULL with errno set; sizes and counts are 0 or
 *   UINT64_MAX. terrace_last_error says in words what was asked, what is allowed and what to do.
 * - Any thread may call anything at any time, but not from a signal handler. A handler must not touch memory of a pool either, unless its signal is blocked
 *   (pthread_sigmask) whenever its thread is in a call, or in malloc, free and their like, which faults use too: it would wait for a lock that its own thread has, for ever.
 * - A thread may be cancelled (pthread_cancel) while it touches memory of a pool, but not in a call: pthread_setcancelstate keeps it from that.
 * - A handle (terrace_pool and its like) that is closed, foreign or of another kind is refused with EBADF or EINVAL, never followed. So is an address to free.
 * - Unless terrace_options.fault_threads says otherwise, faults are taken in the thread that touches memory, by a handler for SIGBUS. Then a system call that is
 *   given memory of a pool that is not in DRAM just now fails with EFAULT: read into a buffer of malloc's and copy. Stacks, and locks that are waited on, do not
 *   belong in such memory.
 * - What cannot be read back kills what touches it with SIGBUS, after a line on stderr that names page and cause. So does an object that is freed.
 * - After fork, memory and handles stay with the parent: the child is refused with EPERM, and may open a pool of its own.
 */

#ifndef TERRACE_H
#define TERRACE_H



#include <stddef.h>
#include <stdint.h>

// For options.flags: what is in the pool is kept. It has named regions (terrace_region_open) and nothing else; a pool that is not kept has everything
// else and no regions.
#define TERRACE_KEEP 1

// Room for the longest name of a region and its end.
#define TERRACE_NAME_BYTES 256

// An array. Not to be followed.
typedef struct terrace_array terrace_array;

// Objects of one size. Not to be followed.
typedef struct terrace_objects terrace_objects;

// A pool that is open. Not to be followed.
typedef struct terrace_pool terrace_pool;

// A region that is open. Not to be followed.
typedef struct terrace_region terrace_region;

// A table of objects of one size. Not to be followed.
typedef struct terrace_table terrace_table;

// How a pool is opened. Set everything to 0 first, then size, path and cap_bytes. New members are added at the end only.
typedef struct terrace_options {
  // sizeof(struct terrace_options).
  size_t size;
  // Directory of the pool; made if need be. What is in it does not outlive the program that opened it, unless flags has TERRACE_KEEP.
  const char *path;
  // DRAM in bytes, everything counted: at least 16 MiB for each lane of the pool. One that is made has a lane for each 64 MiB of it, from 1 to 4, no more than there are processors, and a
  // power of two; one that is kept keeps them.
  uint64_t cap_bytes;
  // Size on the SSD in bytes, of which 25 MiB for each lane are enough always; 0: four times the cap. A pool that is kept keeps its size; one that is not is made anew where another is asked for.
  uint64_t ssd_bytes;
  // Pages of 4 KiB that the program sees in DRAM at a time, from 64 to what half of the cap holds with their page tables; 0: a sixteenth of the cap, and it adapts.
  uint64_t buffer_pages;
  // Threads that take faults; 0: each is taken in the thread that touches memory, which is quicker (see the top of this file). Up to 64.
  uint32_t fault_threads;
  // 0 or TERRACE_KEEP; a pool that was made with others is refused with EINVAL.
  uint32_t flags;
} terrace_options;

// Bytes of a region.
typedef struct terrace_range {
  // The first.
  const void *start;
  // How many.
  size_t bytes;
} terrace_range;

// What is known of a region of a pool. New members are added at the end only.
typedef struct terrace_region_info {
  // Bytes it was made with or grew to, and bytes it can grow to.
  uint64_t bytes;
  uint64_t bytes_max;
  // Where it lies when it is open.
  void *base;
  // 1 if it is open, else 0.
  uint32_t open;
  // 0.
  uint32_t reserved;
  // Its name.
  char name[TERRACE_NAME_BYTES];
} terrace_region_info;

// Counts since the pool was opened, and what it holds now. New members are added at the end only.
typedef struct terrace_stats {
  // The bound on DRAM, bytes.
  uint64_t cap_bytes;
  // DRAM held of it.
  uint64_t used_bytes;
  // Of it, the tables that say where objects and pages are.
  uint64_t table_bytes;
  // Pages of 4 KiB that the program sees in DRAM at most, and now.
  uint64_t buffer_pages;
  uint64_t resident_pages;
  // Faults that brought a page or object back, and that showed one never written to.
  uint64_t faults_filled;
  uint64_t faults_zero;
  // Faults that ended in SIGBUS.
  uint64_t faults_failed;
  // Pages taken away from the program again; and times that a page which was written to was stored, when it was taken away or by a sync, after which it may stay.
  uint64_t pages_evicted;
  uint64_t pages_stored;
  // Objects and pages found in DRAM, and those that took a device read.
  uint64_t hits;
  uint64_t misses;
  // Device reads and writes, everything counted.
  uint64_t device_reads;
  uint64_t device_read_bytes;
  uint64_t device_writes;
  uint64_t device_write_bytes;
  // Live bytes on the SSD, and how many it takes.
  uint64_t ssd_live_bytes;
  uint64_t ssd_usable_bytes;
  // Bytes that terrace_malloc and its like handed out, each rounded up, and bytes of pages that hold them.
  uint64_t malloc_bytes;
  uint64_t malloc_page_bytes;
} terrace_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes an array of `len` objects of `bytes` bytes (1 to 4096), zeros, which can grow to `len_max` (0: it cannot grow; EINVAL if that is less than `len`).
struct terrace_array *terrace_array_create(struct terrace_pool *pool,
                                           uint64_t len,
                                           size_t bytes,
                                           uint64_t len_max);

// The address of object `index`, which stays until the array ends. NULL with EINVAL: the array does not have it.
void *terrace_array_at(const struct terrace_array *array, uint64_t index);

// How many objects it has; UINT64_MAX when it fails.
uint64_t terrace_array_len(const struct terrace_array *array);

// Changes how many objects it has. New ones are zeros; nobody may use those that go.
int terrace_array_resize(struct terrace_array *array, uint64_t len);

// Makes one object zeros again: it takes no DRAM and no SSD then.
int terrace_array_clear(struct terrace_array *array, uint64_t index);

// Frees the array and its objects.
int terrace_array_destroy(struct terrace_array *array);

// What the calling thread's last call that failed said, in words: what was asked, what is allowed and what to do. Never NULL; empty if none
// failed. Valid until the thread's next call that fails. In a destructor of thread-specific data, and after main has returned, it may say only that errno has to do.
const char *terrace_last_error(void);

// `bytes` bytes, as malloc: aligned to 16, not set to anything.
void *terrace_malloc(struct terrace_pool *pool, size_t bytes);

// `count` times `bytes` bytes, as calloc: zeros.
void *terrace_calloc(struct terrace_pool *pool, size_t count, size_t bytes);

// `bytes` bytes at a multiple of `alignment`, a power of two up to 1 GiB.
void *terrace_aligned_alloc(struct terrace_pool *pool, size_t alignment, size_t bytes);

// As realloc: NULL is as terrace_malloc, otherwise memory of terrace_malloc and its like, of this pool. Unlike realloc, 0 bytes are as 1. When it fails,
// the memory is as it was.
//
// Nobody else uses the memory meanwhile.
void *terrace_realloc(struct terrace_pool *pool,
                      void *memory,
                      size_t bytes);

// Frees memory of terrace_malloc and its like, and objects of terrace_object_alloc. NULL is nothing. -1 with EINVAL: not such memory, or
// freed already; then nothing has changed.
int terrace_free(void *memory);

// Bytes that may be used at an allocation of terrace_malloc and its like: what was asked for, or more; of an object, its size. 0: it is neither.
size_t terrace_usable_size(const void *memory);

// 1 if an address lies in memory of a pool that is open, else 0: tells it from malloc's.
int terrace_owns(const void *memory);

// Makes a place for objects of `bytes` bytes (1 to 4096), up to `objects_max` of them (0: as many as the SSD takes, but no
// more than 268,435,456 and than a quarter of the addresses that are left to the pool, or of the DRAM for those, has room for; each has 4 KiB
// of addresses, and 2 MiB of those cost some 16 bytes of DRAM: more than there is of that is ENOMEM).
struct terrace_objects *terrace_objects_create(struct terrace_pool *pool,
                                               size_t bytes,
                                               uint64_t objects_max);

// The same for objects of different sizes, each up to `bytes_max` bytes (1 to 4096), which terrace_object_resize changes. Each takes ten bytes of DRAM
// for what is known of it, where objects of one size take four.
struct terrace_objects *terrace_objects_create_sized(struct terrace_pool *pool,
                                                     size_t bytes_max,
                                                     uint64_t objects_max);

// A new object: zeros, aligned to 64 bytes. Free it with terrace_free. Where sizes differ it has as many bytes as one may have.
void *terrace_object_alloc(struct terrace_objects *objects);

// The same, of `bytes` bytes.
void *terrace_object_alloc_sized(struct terrace_objects *objects, size_t bytes);

// Makes an object of terrace_objects_create_sized longer or shorter. It stays where it is; what comes is zeros. -1: it is as it was; errno is EINVAL if it is
// no such object or may not have so many bytes, ENOMEM if the SSD is full.
//
// Nobody else uses the object meanwhile.
int terrace_object_resize(void *object,
                          size_t bytes);

// How many objects are allocated; UINT64_MAX when it fails.
uint64_t terrace_objects_count(const struct terrace_objects *objects);

// Frees all of them and their place.
int terrace_objects_destroy(struct terrace_objects *objects);

// Opens a pool, and makes it if need be. NULL: errno is EBUSY if another process has it, EINVAL if an option is out of bounds, EADDRINUSE if
// something else of the program is where the regions of the pool lie, ENOSPC, EMFILE or ENOMEM if the system has too little, ENOENT if the directory
// above the pool's is not there, EIO if what is there is damaged or no pool, ENOSYS if this machine does not let programs take their faults (terrace_last_error says what to set).
//
// Where fault_threads is 0, faults are signals: the first opening installs a handler for SIGBUS. A thread that has SIGBUS blocked is ended with its program by the kernel at
// its first fault, without a message: leave it out of what is blocked (sigdelset(&set, SIGBUS) after sigfillset). A handler that the program installs for SIGBUS later
// must pass on what it does not know, with all three arguments, to the one that sigaction said was there, and have its sa_flags and sa_mask. A fault needs up to 64 KiB of the
// stack of the thread that touches memory. What a device reads into memory of the pool by itself (O_DIRECT, also by libaio and io_uring) may be lost then, and with
// fault_threads before Linux 6.8: let it read into other memory, and copy.
//
// `options` points to as many bytes as its size says; its path is a string.
struct terrace_pool *terrace_open(const struct terrace_options *options);

// Closes a pool and all that is of it: its arrays, tables, regions and memory, which nobody may touch any more. Calls on it
// that are under way in other threads end first; 10 s are waited for them. -1 with ETIMEDOUT: they have not ended; it is closed when they do, and until then
// terrace_open says EBUSY. What closes or destroys something of a pool says the same of that.
int terrace_close(struct terrace_pool *pool);

// Opens the region `name` of a pool that is kept. If there is none, makes it: `bytes` zeros, which can grow to `bytes_max` (0: as many as the
// SSD takes). One that is there keeps its size, and is as at its last sync, at the same address. NULL: errno is EBUSY if it is open, ENOMEM if the SSD
// has no room for it, there are no addresses for it or 1024 regions are there, EINVAL for another name, 0 bytes where there is none, a `bytes_max` below `bytes` that is not 0, or a pool
// without TERRACE_KEEP.
//
// `name` is UTF-8, 1 to 255 bytes.
struct terrace_region *terrace_region_open(struct terrace_pool *pool,
                                           const char *name,
                                           uint64_t bytes,
                                           uint64_t bytes_max);

// Where it begins: the same whenever it is open, so pointers in it to what is in it hold.
void *terrace_region_base(const struct terrace_region *region);

// How long it is; UINT64_MAX when it fails.
uint64_t terrace_region_bytes(const struct terrace_region *region);

// Makes it longer; what comes is zeros. Kept from the next sync on.
int terrace_region_grow(struct terrace_region *region, uint64_t bytes);

// The address that was set as its root, from which a program finds the rest. NULL with errno 0: none is.
void *terrace_region_root(const struct terrace_region *region);

// Sets its root: an address in the region, or NULL for none. Kept from the next sync on.
int terrace_region_set_root(struct terrace_region *region, const void *root);

// Makes what was written to these ranges durable, at once or not at all, with the region's length and root; with NULL and 0, all of it. Whole pages of 4 KiB are
// synced. What is not synced is gone after a crash or when the region is closed. -1: nothing was synced, and the memory is as it was; errno is EINVAL for a
// range that is not the region's or more than 4096 of them, E2BIG if more than 16384 pages outside of the ranges were changed and have left DRAM (sync
// them too), ENOMEM if the SSD is full, EROFS if it failed, ETIMEDOUT if it took more than 30 s. After the last two a crash may leave this sync, as a whole, done;
// the next sync, or closing the region, takes it back first.
//
// `ranges` points to so many. What other threads write meanwhile may be part of it or not.
int terrace_region_sync(struct terrace_region *region,
                        const struct terrace_range *ranges,
                        size_t count);

// Closes it: nobody may touch it any more. What was not synced is gone.
int terrace_region_close(struct terrace_region *region);

// Removes the region `name`, which is not open, and all that is in it.
//
// `name` is a string.
int terrace_region_remove(struct terrace_pool *pool, const char *name);

// Fills the first `size` bytes of `info`, sizeof(struct terrace_region_info), with what is known of the region of place `nth`, from 0 on. -1 with ENOENT: there are not
// so many.
int terrace_region_list(const struct terrace_pool *pool,
                        uint64_t nth,
                        struct terrace_region_info *info,
                        size_t size);

// Fills the first `size` bytes of `stats`: sizeof(struct terrace_stats).
int terrace_get_stats(const struct terrace_pool *pool, struct terrace_stats *stats, size_t size);

// This library's version, as "0.1.0".
const char *terrace_version(void);

// Makes a table of objects of `bytes` bytes (up to about 64 KiB), for code that asks for objects instead of touching them: no faults, no pages.
struct terrace_table *terrace_table_create(struct terrace_pool *pool,
                                           size_t bytes);

// Stores a new object, and its number in `id`. `object` has as many bytes as the table's objects.
int terrace_insert(struct terrace_table *table, const void *object, uint64_t *id);

// Copies object `id` to `object`. -1 with ENOENT: there is none.
int terrace_get(const struct terrace_table *table, uint64_t id, void *object);

// Copies objects `ids[0]` to `ids[count - 1]` to `objects`, one after another, with as many device reads under way as the device takes. `found[n]` is set
// to 1, or to 0 where there is no such object; `found` may be NULL if all are there: then one that is not is ENOENT.
int terrace_get_many(const struct terrace_table *table,
                     const uint64_t *ids,
                     size_t count,
                     void *objects,
                     uint8_t *found);

// Changes object `id` by what is in it: calls `change` once, in this thread, with a copy of its `bytes` bytes and with `context`, and stores what that leaves there. Other
// calls that change the object (terrace_update, terrace_put, terrace_remove) come before or after, never between, so what threads count up that way is not lost; calls
// that read it see it as it was until then. -1 with ENOENT: there is none, and `change` was not called. -1 with another errno: the object is as it was.
//
// `change` may touch memory of any pool and call what reads. terrace_update, terrace_put, terrace_remove and what destroys or closes anything are refused in it with
// EDEADLK: its thread would wait for itself. Calls that change any object of the table may wait until it ends, so it waits for nobody who makes such a call, and takes no lock that
// is held around one. It ends by returning, not by longjmp, an exception, pthread_exit or a cancellation. The copy is gone then.
int terrace_update(struct terrace_table *table,
                   uint64_t id,
                   void (*change)(void *object, size_t bytes, void *context),
                   void *context);

// Replaces object `id`. -1 with ENOENT: there is none.
int terrace_put(struct terrace_table *table, uint64_t id, const void *object);

// Frees object `id`. -1 with ENOENT: there is none.
int terrace_remove(struct terrace_table *table, uint64_t id);

// Says that objects will be wanted soon. Returns at once; it may be in vain.
int terrace_prefetch(const struct terrace_table *table, const uint64_t *ids, size_t count);

// How many objects there are; UINT64_MAX when it fails.
uint64_t terrace_table_count(const struct terrace_table *table);

// Frees the table and its objects.
int terrace_table_destroy(struct terrace_table *table);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TERRACE_H */
