/* test_replica.c - choosing among copies of the experts, on simulated drives.
 *
 * Cases R158 (the split follows measured speed; losing a copy falls back without failing a read), R160 (a
 * copy that holds only some experts).
 *
 * A simulated drive delivers its reads one after the other at its own speed; a fixed number of reads is
 * kept outstanding over all drives together, as the expert store does.
 */
#include <string.h>

#include "replica.h"
#include "test.h"

#define MIB ((int64_t)1 << 20)
#define EXPERT_BYTES (21 * MIB)
#define DRIVES 3
#define QUEUE 64

typedef struct {
    double speed;   /* bytes per second */
    double latency; /* seconds before a read on an idle drive begins to deliver */
    double fails_from, fails_to;
    uint32_t experts; /* bit e % 32 = holds expert e */
    int n;            /* outstanding reads, oldest first */
    double done[QUEUE];
    int expert[QUEUE];
    int64_t delivered;
} drive;

typedef struct {
    drive drives[DRIVES];
    clb_replica replicas[DRIVES];
    int n;
    double now;
    int64_t bytes; /* of a read */
    int failed_reads;
    int lost_reads; /* that no copy could deliver */
    int reads;
    uint64_t seed;
} simulation;

static void start(simulation *s, const double *speeds, int n, int64_t bytes)
{
    memset(s, 0, sizeof *s);
    s->n = n;
    s->bytes = bytes;
    s->seed = 12345;
    s->now = 100;
    for (int i = 0; i < n; i++)
        s->drives[i] = (drive){.speed = speeds[i], .latency = 0.0002, .experts = ~0u};
    clb_replica_init(s->replicas, n, s->now);
}

static int outstanding(const simulation *s)
{
    int sum = 0;
    for (int i = 0; i < s->n; i++)
        sum += s->drives[i].n;
    return sum;
}

/* Sends a read of an expert to a drive that holds it and is not in `tried`. */
static void send(simulation *s, int expert, uint32_t tried)
{
    uint32_t allowed = 0;
    for (int i = 0; i < s->n; i++)
        if (s->drives[i].experts >> (expert % 32) & 1)
            allowed |= 1u << i;
    int32_t i = clb_replica_choose(s->replicas, s->n, allowed & ~tried, s->bytes, s->now);
    if (i < 0) {
        s->lost_reads++;
        return;
    }
    CHECK_MSG(i < s->n && (allowed & ~tried) >> i & 1, "drive %d was chosen and is not allowed", (int)i);
    drive *d = &s->drives[i];
    double begins = d->n > 0 ? d->done[d->n - 1] : s->now + d->latency;
    d->done[d->n] = begins + (double)s->bytes / d->speed;
    d->expert[d->n++] = expert;
    clb_replica_started(&s->replicas[i], s->bytes, s->now);
}

/* The next read that ends, on whatever drive. */
static void step(simulation *s)
{
    int next = -1;
    for (int i = 0; i < s->n; i++)
        if (s->drives[i].n > 0 && (next < 0 || s->drives[i].done[0] < s->drives[next].done[0]))
            next = i;
    if (next < 0)
        return;
    drive *d = &s->drives[next];
    int expert = d->expert[0];
    s->now = d->done[0];
    d->n--;
    memmove(d->done, d->done + 1, (size_t)d->n * sizeof *d->done);
    memmove(d->expert, d->expert + 1, (size_t)d->n * sizeof *d->expert);
    if (s->now >= d->fails_from && s->now < d->fails_to) {
        clb_replica_failed(&s->replicas[next], s->bytes, s->now);
        s->failed_reads++;
        send(s, expert, 1u << next);
        return;
    }
    clb_replica_delivered(&s->replicas[next], s->bytes, s->now);
    d->delivered += s->bytes;
    s->reads++;
}

static void run_until(simulation *s, double end, int depth)
{
    while (s->now < end) {
        while (outstanding(s) < depth)
            send(s, (int)(test_random(&s->seed) % 1000), 0);
        step(s);
    }
}

static void forget_deliveries(simulation *s)
{
    for (int i = 0; i < s->n; i++)
        s->drives[i].delivered = 0;
}

static double share(const simulation *s, int i)
{
    double sum = 0;
    for (int k = 0; k < s->n; k++)
        sum += (double)s->drives[k].delivered;
    return sum > 0 ? (double)s->drives[i].delivered / sum : 0;
}

static int near(double a, double b, double tolerance)
{
    return a >= b - tolerance && a <= b + tolerance;
}

static void test_R158_the_split_follows_the_speed_of_the_drives(int64_t bytes, int depth)
{
    simulation s;
    const double speeds[] = {2e9, 14.6e9, 6.3e9};
    start(&s, speeds, 3, bytes);
    run_until(&s, 102, depth);
    forget_deliveries(&s);
    run_until(&s, 106, depth);
    for (int i = 0; i < 3; i++) {
        CHECK_MSG(near(share(&s, i), speeds[i] / 22.9e9, 0.03), "%lld bytes, drive %d has a share of %.3f",
                  (long long)bytes, i, share(&s, i));
        CHECK_MSG(near(s.replicas[i].rate / speeds[i], 1, 0.15), "drive %d is thought to read %.3g B/s", i,
                  s.replicas[i].rate);
    }
    int64_t sum = 0;
    for (int i = 0; i < 3; i++)
        sum += s.drives[i].delivered;
    CHECK_MSG((double)sum / 4 > 0.95 * 22.9e9, "together %.3g B/s", (double)sum / 4);
    CHECK(s.failed_reads == 0 && s.lost_reads == 0);
}

static void one_read_at_a_time_goes_to_the_fastest_drive(void)
{
    simulation s;
    const double speeds[] = {0.5e9, 2e9};
    for (int k = 0; k < 2; k++) {
        start(&s, speeds, 2, k == 0 ? EXPERT_BYTES : MIB);
        run_until(&s, 101, 1);
        forget_deliveries(&s);
        run_until(&s, 110, 1);
        CHECK_MSG(share(&s, 1) > 0.99, "share of the fast drive %.3f", share(&s, 1));
        CHECK(s.replicas[0].rate > 0 && s.replicas[1].rate > 0);
    }
}

static void test_R158_a_drive_that_is_pulled_out_loses_no_read(void)
{
    simulation s;
    const double speeds[] = {3e9, 1e9};
    start(&s, speeds, 2, EXPERT_BYTES);
    run_until(&s, 103, 8);
    s.drives[0].fails_from = 103;
    s.drives[0].fails_to = 1e9;
    run_until(&s, 104, 8);
    forget_deliveries(&s);
    int before = s.failed_reads;
    run_until(&s, 163, 8);
    CHECK(s.lost_reads == 0);
    CHECK_MSG(before >= 1 && before <= 9, "%d reads failed at first", before);
    CHECK_MSG(s.failed_reads - before >= 3 && s.failed_reads - before <= 8, "%d tries in a minute",
              s.failed_reads - before);
    CHECK(share(&s, 1) == 1.0);
}

static void a_drive_that_comes_back_is_used_again(void)
{
    simulation s;
    const double speeds[] = {3e9, 1e9};
    start(&s, speeds, 2, EXPERT_BYTES);
    s.drives[0].fails_from = 103;
    s.drives[0].fails_to = 110;
    run_until(&s, 130, 8);
    CHECK(s.replicas[0].failures == 0);
    forget_deliveries(&s);
    run_until(&s, 140, 8);
    CHECK_MSG(near(share(&s, 0), 0.75, 0.05), "share %.3f", share(&s, 0));
    CHECK(s.lost_reads == 0);
}

static void when_every_drive_has_failed_reads_are_still_tried(void)
{
    clb_replica r[2];
    clb_replica_init(r, 2, 0);
    for (int i = 0; i < 2; i++) {
        clb_replica_started(&r[i], MIB, 1 + i);
        clb_replica_failed(&r[i], MIB, 1.1 + i);
    }
    CHECK(clb_replica_choose(r, 2, 3, MIB, 2.05) == 0); /* may be tried again soonest */
    CHECK(clb_replica_choose(r, 2, 2, MIB, 2.05) == 1);
    CHECK(clb_replica_choose(r, 2, 0, MIB, 2.05) == -1);
    CHECK(clb_replica_choose(r, 2, 4, MIB, 2.05) == -1);
    clb_replica_started(&r[1], MIB, 2.06);
    clb_replica_delivered(&r[1], MIB, 2.07);
    CHECK(clb_replica_choose(r, 2, 3, MIB, 2.08) == 1);
    CHECK(clb_replica_choose(r, 2, 3, MIB, 2.2) == 0); /* its one read, a second after the failure */
    clb_replica_started(&r[0], MIB, 2.2);
    CHECK(clb_replica_choose(r, 2, 3, MIB, 2.3) == 1);
    clb_replica_failed(&r[0], MIB, 2.4);
    CHECK(clb_replica_choose(r, 2, 3, MIB, 3.5) == 1); /* now two seconds */
    CHECK(clb_replica_choose(r, 2, 3, MIB, 4.5) == 0);
}

static void reads_that_were_under_way_at_a_failure_change_nothing_about_it(void)
{
    clb_replica r[2];
    clb_replica_init(r, 2, 0);
    for (int i = 0; i < 4; i++)
        clb_replica_started(&r[0], MIB, 1);
    clb_replica_failed(&r[0], MIB, 1.1);
    clb_replica_failed(&r[0], MIB, 1.2);
    clb_replica_delivered(&r[0], MIB, 1.3);
    CHECK(r[0].failures == 1 && r[0].outstanding == MIB);
    CHECK(clb_replica_choose(r, 2, 3, MIB, 1.4) == 1);
    CHECK(clb_replica_choose(r, 2, 3, MIB, 2.15) == 0);
}

static void test_R160_a_partial_copy_is_read_for_what_it_holds(void)
{
    simulation s;
    const double speeds[] = {1e9, 9e9};
    start(&s, speeds, 2, EXPERT_BYTES);
    s.drives[1].experts = 0xff; /* a quarter of them */
    run_until(&s, 130, 8);
    CHECK(s.lost_reads == 0);
    CHECK_MSG(share(&s, 1) > 0.2 && share(&s, 1) < 0.3, "share %.3f", share(&s, 1));
}

static void a_drive_that_changes_its_speed_changes_its_share(void)
{
    simulation s;
    const double speeds[] = {4e9, 1e9};
    start(&s, speeds, 2, EXPERT_BYTES);
    run_until(&s, 103, 8);
    s.drives[0].speed = 0.25e9; /* too warm */
    run_until(&s, 110, 8);
    forget_deliveries(&s);
    run_until(&s, 125, 8);
    CHECK_MSG(near(share(&s, 0), 0.2, 0.05), "share of the slow drive %.3f", share(&s, 0));
    s.drives[0].speed = 4e9;
    run_until(&s, 150, 8);
    forget_deliveries(&s);
    run_until(&s, 160, 8);
    CHECK_MSG(near(share(&s, 0), 0.8, 0.05), "share of the fast drive %.3f", share(&s, 0));
}

static void a_drive_that_nobody_needs_is_measured_from_time_to_time(void)
{
    simulation s;
    const double speeds[] = {4e9, 0.05e9};
    start(&s, speeds, 2, EXPERT_BYTES);
    run_until(&s, 110, 1);
    forget_deliveries(&s);
    run_until(&s, 210, 1);
    int64_t reads = s.drives[1].delivered / EXPERT_BYTES;
    /* A read takes 0.44 s, and the drive is tried after fifty times that. */
    CHECK_MSG(reads >= 3 && reads <= 6, "%lld reads in 100 s", (long long)reads);
    s.drives[1].speed = 8e9; /* moved to another port */
    run_until(&s, 400, 1);
    forget_deliveries(&s);
    run_until(&s, 420, 1);
    CHECK_MSG(s.replicas[1].rate > 1e9, "still thought to read %.3g B/s", s.replicas[1].rate);
}

/* A caller that computes for a while looks at what has arrived only then, often just after it has asked for
 * more: that must not make a drive look faster than it is. */
static void completions_noticed_late_never_flatter_a_drive(int64_t bytes, int at_once)
{
    const double speed = 2e9;
    clb_replica r;
    double now = 100, idle_at = 100;
    double arrives[QUEUE];
    int n = 0;
    uint64_t seed = 7;
    clb_replica_init(&r, 1, now);
    for (int round = 0; round < 5000; round++) {
        for (int i = 0; i < at_once && n < QUEUE; i++) {
            idle_at = (idle_at > now ? idle_at : now) + (double)bytes / speed;
            arrives[n++] = idle_at;
            clb_replica_started(&r, bytes, now);
        }
        if (round % 3 == 0) /* computes */
            now += 0.004 * (double)(test_random(&seed) % 1000) / 1000;
        now += 1e-6;
        int left = 0;
        for (int i = 0; i < n; i++)
            if (arrives[i] <= now)
                clb_replica_delivered(&r, bytes, now);
            else
                arrives[left++] = arrives[i];
        n = left;
        if (r.rate > speed * 1.3)
            break;
    }
    CHECK_MSG(r.rate > 0.02 * speed && r.rate <= speed * 1.3, "%d reads of %lld bytes: %.3g B/s measured",
              at_once, (long long)bytes, r.rate);
}

/* The first read took long for reasons that have nothing to do with the drive. */
static void a_bad_first_measurement_is_soon_made_good(void)
{
    simulation s;
    const double speeds[] = {2e9, 2e9};
    start(&s, speeds, 2, MIB);
    s.replicas[0].rate = 2e9;
    s.replicas[1].rate = 0.02e9;
    run_until(&s, 115, 8);
    forget_deliveries(&s);
    run_until(&s, 120, 8);
    CHECK_MSG(share(&s, 1) > 0.4, "share of the drive thought slow %.3f", share(&s, 1));
}

/* Decoding asks for the experts of one layer and computes before the next: no burst is long. */
static void short_bursts_add_up_to_a_measurement(void)
{
    const double speeds[] = {4e9, 0.5e9, 3e9};
    clb_replica r;
    double now = 100;
    clb_replica_init(&r, 1, now);
    for (size_t k = 0; k < sizeof speeds / sizeof *speeds; k++) {
        for (int burst = 0; burst < 100; burst++) {
            for (int i = 0; i < 8; i++)
                clb_replica_started(&r, MIB, now);
            for (int i = 0; i < 8; i++) {
                now += (double)MIB / speeds[k];
                clb_replica_delivered(&r, MIB, now);
            }
            now += 0.003;
        }
        CHECK_MSG(near(r.rate, speeds[k], 0.05 * speeds[k]), "%.3g B/s measured of %.3g", r.rate, speeds[k]);
    }
}

int main(void)
{
    test_R158_the_split_follows_the_speed_of_the_drives(EXPERT_BYTES, 24);
    test_R158_the_split_follows_the_speed_of_the_drives(MIB, 60);
    one_read_at_a_time_goes_to_the_fastest_drive();
    test_R158_a_drive_that_is_pulled_out_loses_no_read();
    a_drive_that_comes_back_is_used_again();
    when_every_drive_has_failed_reads_are_still_tried();
    reads_that_were_under_way_at_a_failure_change_nothing_about_it();
    test_R160_a_partial_copy_is_read_for_what_it_holds();
    a_drive_that_changes_its_speed_changes_its_share();
    a_drive_that_nobody_needs_is_measured_from_time_to_time();
    a_bad_first_measurement_is_soon_made_good();
    short_bursts_add_up_to_a_measurement();
    completions_noticed_late_never_flatter_a_drive(MIB / 16, 2);
    completions_noticed_late_never_flatter_a_drive(MIB, 3);
    completions_noticed_late_never_flatter_a_drive(EXPERT_BYTES, 2);
    return test_report();
}
