/** Bodies as our server's description has them; `make web-types` writes what stands behind it. */
import type { components } from "./schema";

export type Described = components["schemas"];
