/* fault.h - faults that tests plant to show that an invariance test can fail. Never set outside tests
 * (colibri_engine_options.fault). */
#ifndef CLB_FAULT_H
#define CLB_FAULT_H

enum {
    CLB_FAULT_NONE = 0,
    CLB_FAULT_BATCH_ORDER =
        1, /* logits of a batch wider than one are scaled by 1 + 2^-6 (more than a bf16 step) */
    CLB_FAULT_KV_POSITION = 2,  /* a chunk's second token is stored one position too far in layer 0 */
    CLB_FAULT_NAN = 3,          /* layer 1 turns position 3 into NaN */
    CLB_FAULT_EXPERT_BYTE = 4,  /* an expert read from disk arrives with one wrong byte */
    CLB_FAULT_SHARED_BLOCK = 5, /* a session writes into a KV block that another one holds too */
    CLB_FAULT_PARKED = 6,       /* a parked chunk comes back with one value changed */
    CLB_FAULT_ROUTED = 7,       /* the last token of several is not counted (colibri_session_count) */
    CLB_FAULT_CLOCK_GAP = 8,    /* attention is not booked in the time of steps */
    CLB_FAULT_CLOCK_OFF = 9,    /* nothing is: to measure what booking costs */
    CLB_FAULT_POLICY = 20,      /* colibri_policy_replay gives up the expert that is expected soonest */
    CLB_FAULT_GUESSES = 21,     /* its guesses push out what they like */
    CLB_FAULT_WARM_BYTE = 22,   /* an expert loaded while idle arrives with one wrong byte */
    /* Reads of experts (store_fault.c). */
    CLB_FAULT_MIRROR_EIO = 40,   /* every read of a mirror fails */
    CLB_FAULT_PRIMARY_EIO = 41,  /* every read of the model's own files fails */
    CLB_FAULT_EVERY_EIO = 42,    /* every replica fails from the 9th read of all to the 72nd */
    CLB_FAULT_MIRROR_SLOW = 43,  /* reads of mirrors take 1 ms longer */
    CLB_FAULT_PRIMARY_SLOW = 44, /* reads of the model's own files do */
    CLB_FAULT_SHORT_READ = 45    /* of three reads one is interrupted and one returns half */
};

#endif
