#!/usr/bin/env bash
# run_in_bochs.sh BINARY [ARG...]: runs a static x86-64 program on an emulated CPU with AVX-512 (Skylake-X), prints
# what it prints and returns its exit code; 254 if the machine did not boot. Needs Debian's bochs, bochs-term,
# bochsbios, vgabios, isolinux, syslinux-common, xorriso, cpio; the kernel is downloaded once, never installed.
# BOCHS, BOCHS_BIOS and BOCHS_VGABIOS name another build of the emulator and its ROMs, BOCHS_CPU another CPU,
# BOCHS_FEATURES instructions it has besides.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=$here/../build/bochs
binary=$1
shift
mkdir -p "$cache"
cache=$(cd "$cache" && pwd)

if [ ! -f "$cache/vmlinuz" ]; then
  package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/{print $2; exit}')
  (cd "$cache" && apt-get download -q "$package" && dpkg-deb -x linux-image-*.deb kernel && mv kernel/boot/vmlinuz-* vmlinuz \
    && rm -rf kernel linux-image-*.deb)
fi
[ -x "$cache/init" ] || gcc -O2 -static -o "$cache/init" "$here/bochs_init.c"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/dev" "$work/iso/isolinux"
cp "$cache/init" "$work/root/init"
cp "$binary" "$work/root/test"
: > "$work/root/args"
for argument in "$@"; do printf '%s\0' "$argument" >> "$work/root/args"; done
(cd "$work/root" && find . | cpio -o -H newc --quiet) > "$work/iso/initrd"
cp "$cache/vmlinuz" "$work/iso/vmlinuz"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$work/iso/isolinux/"
# Bochs reports an XSAVE layout that Linux refuses unless the compact forms are off.
cat > "$work/iso/isolinux/isolinux.cfg" <<C
DEFAULT l
PROMPT 0
TIMEOUT 0
LABEL l
 KERNEL /vmlinuz
 INITRD /initrd
 APPEND console=ttyS0,115200 rdinit=/init clearcpuid=xsaves,xsavec panic=-1 mitigations=off no_timer_check tsc=reliable lpj=1000000 random.trust_cpu=on quiet
C
xorriso -as mkisofs -quiet -o "$work/boot.iso" -b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot \
  -boot-load-size 4 -boot-info-table "$work/iso" 2> "$work/xorriso.log" || { cat "$work/xorriso.log"; exit 254; }

if [ -n "${BOCHS:-}" ]; then
  emulator=("$BOCHS") display=nogui speaker=
else # Debian's build has its debugger compiled in, which must be told to go on, and no head-less display
  emulator=(bochs-bin -rc "$work/continue") display=term speaker='speaker: enabled=0'
fi
printf 'continue\nquit\n' > "$work/continue"
features= # here, since a here-document would lose the quotes
[ -z "${BOCHS_FEATURES:-}" ] || features="add_features=\"$BOCHS_FEATURES\", "
cat > "$work/bochsrc" <<C
config_interface: textconfig
display_library: $display
romimage: file=${BOCHS_BIOS:-/usr/share/bochs/BIOS-bochs-latest}
vgaromimage: file=${BOCHS_VGABIOS:-/usr/share/bochs/VGABIOS-lgpl-latest}
cpu: model=${BOCHS_CPU:-corei7_skylake_x}, ${features}count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=512, host=512
clock: sync=none
ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14
ata0-master: type=cdrom, path=$work/boot.iso, status=inserted
boot: cdrom
$speaker
com1: enabled=1, mode=file, dev=$work/serial.txt
port_e9_hack: enabled=1
log: $work/bochs.log
panic: action=fatal
error: action=report
info: action=report
debug: action=ignore
C
TERM=linux timeout "${BOCHS_TIMEOUT:-1800}" "${emulator[@]}" -q -f "$work/bochsrc" < /dev/null > "$work/out" 2> "$work/err" || true
code=$(grep -a -o '@@CODE=[0-9]*@@' "$work/out" | tail -n 1 | tr -dc 0-9 || true)
sed -e '1,/@@BEGIN@@/d' -e '/@@CODE=/,$d' "$work/out"
if [ -z "$code" ]; then
  echo "the emulated machine did not finish; its last words:" >&2
  tail -n 20 "$work/serial.txt" "$work/bochs.log" >&2 || true
  exit 254
fi
exit "$code"
