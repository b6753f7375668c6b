/** The hummingbird. Drawn in the colours of the theme; decorative, so it has no label. */
export function Logo({ size = 28 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <path
        d="M29.500 8.300 20.600 11"
        stroke="var(--text-2)"
        strokeWidth="1.500"
        strokeLinecap="round"
        fill="none"
      />
      <path
        d="M20.800 10.600c-2.400-2.600-6-1.700-6.900 1.500-.8 3 .4 6.400-2.400 9.900L5.500 27c6.500.4 13.400-2.900 15.200-9.500.6-2.400.9-4.900.1-6.900z"
        fill="var(--accent)"
      />
      <path
        d="M14.200 15.600C9.800 14.800 5.400 11.200 4 5c5.800.6 10.600 3.600 12.300 8.200z"
        fill="var(--accent-strong)"
      />
      <path
        d="M20.700 11.200c.8 2.300.3 4.300-.7 5.700-1.500-.6-2.700-2-2.800-3.800z"
        fill="var(--ruby)"
      />
      <circle cx="18.600" cy="11.600" r=".9" fill="var(--surface-1)" />
    </svg>
  );
}
