#!/usr/bin/env bash
# README's first five commands on a machine that has nothing: tools/clean_machine.sh
#
# Makes a minimal Debian in a folder (debootstrap, root needed), clones the last commit into it, runs the
# commands of README's first code block as they stand, and asks whether the reward rose. The recipe is
# cut to STEPS steps (default 12). The new machine uses the mirror and the pip settings of this one. By
# hand: not part of CI, since it needs root and downloads a system.

# shellcheck source=../bench/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../bench/lib.sh"

STEPS=${STEPS:-12}
lib_work
[ "$(id -u)" = 0 ] || lib_die "clean_machine.sh: needs root for chroot"
command -v debootstrap >/dev/null || lib_die "clean_machine.sh: install debootstrap"

NEW=$WORK/machine
HOME_THERE=/home/user # on the new machine
MIRROR=$(apt-get indextargets --format '$(REPO_URI)' | head -n 1)
RELEASE=$(. /etc/os-release && echo "$VERSION_CODENAME")

leave() {
    umount "$NEW/proc" "$NEW/dev" 2>/dev/null || true
    rm -rf "$WORK"
}
trap leave EXIT

debootstrap --variant=minbase --include=ca-certificates,git "$RELEASE" "$NEW" "$MIRROR" \
    >"$WORK/debootstrap.log" 2>&1 || {
    tail -n 5 "$WORK/debootstrap.log" >&2
    lib_die "debootstrap failed"
}
cp -r /etc/apt/. "$NEW/etc/apt/"
cp /etc/resolv.conf "$NEW/etc/resolv.conf"
cp -r /etc/ssl/certs/. "$NEW/etc/ssl/certs/"
cp -r /usr/local/share/ca-certificates "$NEW/usr/local/share/" 2>/dev/null || true
cp -r /usr/share/ca-certificates "$NEW/usr/share/"
cp -r /usr/share/keyrings/. "$NEW/usr/share/keyrings/"
mount -t proc proc "$NEW/proc"
mount --bind /dev "$NEW/dev"
mkdir -p "$NEW$HOME_THERE"
git clone -q "$ROOT" "$NEW$HOME_THERE/miles"

# The first ```sh block of README, with the recipe cut short.
sed -n '/^```sh$/,/^```$/p' "$ROOT/README.md" | sed -n '2,/^```$/p' | sed '$d' >"$WORK/commands"
[ "$(wc -l <"$WORK/commands")" = 5 ] || lib_die "README's first block has not five commands"
{
    echo 'set -euo pipefail; cd ~/miles'
    sed "s|^recipes/.*|& --num-rollout $STEPS --eval-interval $STEPS|" "$WORK/commands"
} >"$NEW$HOME_THERE/commands.sh"

env -i HOME=$HOME_THERE PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 PIP_CERT="${PIP_CERT:-}" \
    PIP_INDEX_URL="${PIP_INDEX_URL:-}" PIP_FIND_LINKS="" \
    chroot "$NEW" bash "$HOME_THERE/commands.sh" >&2 || lib_die "README's commands failed"

[ -z "$(find "$NEW" -xdev -type d -name torch -path '*-packages*' | head -n 1)" ] ||
    lib_die "torch was installed"
read -r first last < <(lib_metric "$NEW$HOME_THERE/miles/runs/add-smollm2-42/run" rollout/raw_reward |
    awk '{ r[NR] = $1 } END { print (r[1] + r[2]) / 2, (r[NR - 1] + r[NR]) / 2 }')
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b > a) }' ||
    lib_die "the reward did not rise: $first to $last"
echo "commands=5 reward_first=$first reward_last=$last"
