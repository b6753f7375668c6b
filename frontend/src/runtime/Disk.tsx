/** How fast experts come from disk, and from which. */
import { useTranslation } from "react-i18next";
import type { LiveState } from "@/api/livestate";
import { bytes, percent } from "@/core/format";
import { Row, Section } from "./Section";

export function Disk({ disk }: { disk: LiveState["disk"] }) {
  const { t, i18n } = useTranslation();
  const language = i18n.language;
  const speed = (value: number) => `${bytes(value, language)}/s`;
  return (
    <Section title={t("runtime.disk")}>
      <Row name={t("runtime.now")}>{speed(disk.bytes_per_second)}</Row>
      {disk.wait_share !== null && (
        <Row name={t("runtime.diskWait")}>{percent(disk.wait_share)}</Row>
      )}
      <Row name={t("runtime.read")}>{bytes(disk.bytes_read, language)}</Row>
      {disk.places.length > 1 &&
        disk.places.map((place) => (
          <Row key={place.folder} name={place.folder.split("/").at(-1) ?? ""} note={place.folder}>
            <span className={place.failed ? "text-danger" : undefined}>
              {place.failed ? t("runtime.failed") : speed(place.bytes_per_second)}
            </span>
          </Row>
        ))}
    </Section>
  );
}
