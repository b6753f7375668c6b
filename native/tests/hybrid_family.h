/* hybrid_family.h - a family for tests whose layers keep every kind of state that the KV layout knows.
 *
 * GLM's own attention (latent rows and indexer keys) in every layer, and added to it in turn: full K/V,
 * K/V of a window, and a short convolution over the rows of the last positions (rolling state). Describe
 * a model with tiny_model.h as GLM, then set geometry.family to HYBRID_FAMILY. Not for speed. */
#ifndef HYBRID_FAMILY_H
#define HYBRID_FAMILY_H

#define HYBRID_FAMILY 1000
#define HYBRID_WINDOW 40
#define HYBRID_TAPS 4

/* Makes the family known to engines that are opened from now on. */
void hybrid_family_use(void);

#endif
