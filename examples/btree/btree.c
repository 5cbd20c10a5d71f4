/* A B+tree index: 8-byte keys to 8-byte values, nodes of 512 bytes, all values in leaves that are linked in order.
 *
 * One source, three programs: malloc; -DTERRACE_MP, a malloc whose pages step down to the SSD; -DTERRACE_OPP, nodes that do so one by one. */
#include "bench.h"
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
#include "terrace.h"
#endif

enum { FANOUT = 31 };

struct node {
    uint16_t count;
    uint16_t leaf;
    uint32_t unused;
    uint64_t keys[FANOUT];
    union {
        struct node *children[FANOUT + 1]; /* children[i] holds keys below keys[i] */
        struct {
            uint64_t values[FANOUT];
            struct node *next;
        };
    };
};

struct tree {
    struct node *root;
    uint64_t keys;
};

const int app_missing_percent_max = 0;

#if defined(TERRACE_OPP)
static terrace_objects *nodes;
#endif
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
static terrace_pool *pool;
#endif

static struct node *new_node(int leaf) {
#if defined(TERRACE_OPP)
    struct node *node = terrace_object_alloc(nodes);
#elif defined(TERRACE_MP)
    struct node *node = terrace_calloc(pool, 1, sizeof *node);
#else
    struct node *node = calloc(1, sizeof *node);
#endif
    if (!node) die("btree", "out of memory");
    node->leaf = (uint16_t)leaf;
    return node;
}

/* The first of the keys that is not below `key`; in an inner node, the first above it. */
static int place(const struct node *node, uint64_t key) {
    int low = 0, high = node->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (node->keys[middle] < key || (!node->leaf && node->keys[middle] == key)) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Splits child `at`, which is full, of a node that is not. */
static void split(struct node *parent, int at) {
    struct node *left = parent->children[at], *right = new_node(left->leaf);
    int half = left->count / 2;
    uint64_t middle = left->keys[half];
    /* Of an inner node the middle key moves up; a leaf keeps it. */
    int from = left->leaf ? half : half + 1;
    right->count = (uint16_t)(left->count - from);
    memcpy(right->keys, left->keys + from, right->count * sizeof right->keys[0]);
    if (left->leaf) {
        memcpy(right->values, left->values + from, right->count * sizeof right->values[0]);
        right->next = left->next;
        left->next = right;
    } else {
        memcpy(right->children, left->children + from, (right->count + 1u) * sizeof right->children[0]);
    }
    left->count = (uint16_t)half;
    int after = parent->count - at;
    memmove(parent->keys + at + 1, parent->keys + at, (size_t)after * sizeof parent->keys[0]);
    memmove(parent->children + at + 2, parent->children + at + 1, (size_t)after * sizeof parent->children[0]);
    parent->keys[at] = middle;
    parent->children[at + 1] = right;
    parent->count++;
}

static void insert(struct tree *tree, uint64_t key, uint64_t value) {
    if (tree->root->count == FANOUT) {
        struct node *root = new_node(0);
        root->children[0] = tree->root;
        tree->root = root;
        split(root, 0);
    }
    struct node *node = tree->root;
    while (!node->leaf) {
        int at = place(node, key);
        if (node->children[at]->count == FANOUT) {
            split(node, at);
            at += key >= node->keys[at];
        }
        node = node->children[at];
    }
    int at = place(node, key);
    if (at < node->count && node->keys[at] == key) {
        node->values[at] = value;
        return;
    }
    memmove(node->keys + at + 1, node->keys + at, (size_t)(node->count - at) * sizeof node->keys[0]);
    memmove(node->values + at + 1, node->values + at, (size_t)(node->count - at) * sizeof node->values[0]);
    node->keys[at] = key;
    node->values[at] = value;
    node->count++;
    tree->keys++;
}

static uint64_t find(const struct tree *tree, uint64_t key) {
    const struct node *node = tree->root;
    while (!node->leaf) node = node->children[place(node, key)];
    int at = place(node, key);
    return at < node->count && node->keys[at] == key ? node->values[at] : 0;
}

/* Keys in order along the leaves, and as many as were inserted. */
static void verify(const struct tree *tree) {
    const struct node *node = tree->root;
    uint64_t seen = 0, last = 0;
    while (!node->leaf) node = node->children[0];
    for (; node; node = node->next)
        for (int i = 0; i < node->count; i++, seen++) {
            if (seen && node->keys[i] <= last) die("btree", "keys are not in order");
            last = node->keys[i];
        }
    if (seen != tree->keys) die("btree", "leaves hold another number of keys than were inserted");
}

void app_open(const struct bench *b) {
#if defined(TERRACE_OPP) || defined(TERRACE_MP)
    struct terrace_options o = {.size = sizeof o, .path = b->pool, .cap_bytes = b->cap_bytes, .ssd_bytes = b->ssd_bytes};
    pool = terrace_open(&o);
    if (!pool) die("btree", terrace_last_error());
#else
    (void)b;
#endif
#if defined(TERRACE_OPP)
    nodes = terrace_objects_create(pool, sizeof(struct node), 0);
    if (!nodes) die("btree", terrace_last_error());
#endif
}

void *app_shard(uint64_t keys) {
    struct tree *tree = zeros(1, sizeof *tree);
    (void)keys;
    tree->root = new_node(1);
    return tree;
}

/* A shard is verified whole when it has grown to a thousand keys, and four million more each time. */
void app_put(void *shard, uint64_t key, uint64_t version) {
    struct tree *tree = shard;
    uint64_t before = tree->keys;
    insert(tree, key + 1, version);
    if (tree->keys != before && tree->keys % (1 << 22) == 1000) verify(tree);
}

uint64_t app_get(void *shard, uint64_t key) { return find(shard, key + 1); }
