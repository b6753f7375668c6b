/** The points of the galaxy: all of them in one call to the graphics card. */
import { useFrame, useThree } from "@react-three/fiber";
import { useEffect, useLayoutEffect, useMemo } from "react";
import {
  AdditiveBlending,
  BufferAttribute,
  BufferGeometry,
  NormalBlending,
  ShaderMaterial,
} from "three";
import { type Colour, shade } from "@/core/galaxy";
import type { Points } from "./picture";

const VERTEX = /* glsl */ `
  attribute vec4 look;
  uniform float pixels;
  uniform float solid;
  uniform float grain;
  varying vec4 colour;
  void main() {
    vec4 eye = modelViewMatrix * vec4(position, 1.0);
    float shown = step(0.25, look.w);
    float size = mix(0.011, 0.019, step(0.75, look.w)) * mix(0.6, 1.0, shown);
    gl_PointSize = max(pixels * grain * size / -eye.z, 2.0);
    colour = vec4(look.rgb, mix(0.05, solid, shown));
    gl_Position = projectionMatrix * eye;
  }
`;

const FRAGMENT = /* glsl */ `
  varying vec4 colour;
  void main() {
    float away = length(gl_PointCoord - 0.5) * 2.0;
    if (away > 1.0) discard;
    gl_FragColor = vec4(colour.rgb, colour.a * (1.0 - smoothstep(0.55, 1.0, away)));
  }
`;

interface CloudProps {
  points: Points;
  /** 1 for each expert that is shown; the others are hinted at. */
  shown: Uint8Array;
  palette: readonly Colour[];
  dark: boolean;
  /** After every frame. */
  onDrawn: () => void;
}

export function Cloud({ points, shown, palette, dark, onDrawn }: CloudProps) {
  const dpr = useThree(({ viewport }) => viewport.dpr);
  const height = useThree(({ size }) => size.height);
  const invalidate = useThree((state) => state.invalidate);
  const look = useMemo(
    () => new BufferAttribute(new Uint8Array(points.count * 4), 4, true),
    [points],
  );
  const geometry = useMemo(() => {
    const made = new BufferGeometry();
    made.setAttribute("position", new BufferAttribute(points.positions, 3));
    made.setAttribute("look", look);
    return made;
  }, [points, look]);
  const material = useMemo(
    () =>
      new ShaderMaterial({
        vertexShader: VERTEX,
        fragmentShader: FRAGMENT,
        uniforms: { pixels: { value: 1 }, solid: { value: 1 }, grain: { value: 1 } },
        transparent: true,
        depthTest: false,
        depthWrite: false,
      }),
    [],
  );

  useEffect(() => () => geometry.dispose(), [geometry]);
  useEffect(() => () => material.dispose(), [material]);

  useLayoutEffect(() => {
    shade(points, shown, palette, look.array as Uint8Array);
    look.needsUpdate = true;
    // A few experts would be lost in so much space.
    const grain = Math.min(2.5, Math.max(1, (4000 / points.count) ** 0.4));
    (material.uniforms["grain"] as { value: number }).value = grain;
    // Light adds up on black; on white it would vanish.
    material.blending = dark ? AdditiveBlending : NormalBlending;
    (material.uniforms["solid"] as { value: number }).value = dark ? 0.6 : 0.85;
    invalidate();
  }, [points, shown, palette, dark, look, material, invalidate]);

  useLayoutEffect(() => {
    (material.uniforms["pixels"] as { value: number }).value = height * dpr;
    invalidate();
  }, [height, dpr, material, invalidate]);

  // With a number above 0 the frame is drawn here, so that it is known when it is.
  useFrame(({ gl, scene, camera }) => {
    gl.render(scene, camera);
    onDrawn();
  }, 1);

  return <points geometry={geometry} material={material} frustumCulled={false} />;
}
