#!/usr/bin/env bash
# Real clients against the HTTP server: Python's http.client and ssl, raw sockets, and the curl command.
# Every answer is compared with what HTTP/1.1 and server-sent events say. Last line:
#     checks=N failed=0 curl_checks=M
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lib_work

BUILD=${MILES_BUILD:-$ROOT/build}
cmake --build "$BUILD" --target http_demo >&2
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$WORK/key.pem" -out "$WORK/cert.pem" 2>/dev/null

# It serves as long as its input is open.
mkfifo "$WORK/life"
"$BUILD/http_demo" "$WORK/cert.pem" "$WORK/key.pem" <"$WORK/life" >"$WORK/ports" &
demo=$!
exec 9>"$WORK/life"
for _ in $(seq 100); do
    [ ! -s "$WORK/ports" ] || break
    sleep 0.1
done
read -r PORT TLS_PORT <"$WORK/ports" || lib_die "the server did not start"

python3 "$ROOT/tests/live/http_conform.py" "$PORT" "$TLS_PORT" "$WORK/cert.pem" >"$WORK/python" ||
    lib_die "python: $(cat "$WORK/python")"

n=0
# expect NAME WANT CURL_ARGS...: what curl prints, followed by the status.
expect() {
    local name=$1 want=$2 got
    shift 2
    got=$(curl -sS --max-time 20 -w ' %{http_code}' -H 'Authorization: Bearer sesame' "$@" 2>&1) || true
    [ "$got" = "$want" ] || lib_die "curl $name: got '$got', want '$want'"
    n=$((n + 1))
}
U=http://127.0.0.1:$PORT
S=https://127.0.0.1:$TLS_PORT
head -c 1500000 /dev/zero | tr '\0' x >"$WORK/large"
head -c 4000000 /dev/zero >"$WORK/too_large"
for base in "$U" "$S"; do
    ca=(--cacert "$WORK/cert.pem")
    expect health 'ok 200' "${ca[@]}" "$base/health"
    expect health0 'ok 200' "${ca[@]}" --http1.0 "$base/health"
    expect echo 'abc 200' "${ca[@]}" -d abc "$base/echo"
    expect chunked 'abc 200' "${ca[@]}" -H 'Transfer-Encoding: chunked' -d abc "$base/echo"
    expect large "$(cat "$WORK/large") 200" "${ca[@]}" --data-binary "@$WORK/large" "$base/echo"
    expect stream $'data: {"token":0}\n\ndata: {"token":1}\n\ndata: [DONE]\n\n 200' "${ca[@]}" -N \
        -d 2 "$base/stream"
    # curl asks before it sends much.
    expect too_large 413 "${ca[@]}" -o /dev/null -w '%{http_code}' -H 'Expect: 100-continue' \
        --data-binary "@$WORK/too_large" "$base/echo"
    expect two 'okok 200 200' "${ca[@]}" -w '' "$base/health" --next -sS -w ' 200 %{http_code}' \
        "${ca[@]}" "$base/health"
done
# Speaks TLS to a plain port, plain to a TLS port, and trusts nobody: errors, and the server goes on.
for args in "https://127.0.0.1:$PORT/health" "http://127.0.0.1:$TLS_PORT/health" "$S/health"; do
    if curl -sS --max-time 5 -o /dev/null "$args" 2>/dev/null; then
        lib_die "curl got an answer from $args"
    fi
    n=$((n + 1))
done
expect after 'ok 200' "$U/health"

# A stream begun before the end of the input is finished by the drain; no new connection comes in.
curl -sS -N --max-time 20 -H 'Authorization: Bearer sesame' -d 300 "$U/stream" >"$WORK/last" &
last=$!
for _ in $(seq 100); do
    [ ! -s "$WORK/last" ] || break
    sleep 0.02
done
exec 9>&-
wait $last || lib_die "the drain cut a stream"
[ "$(grep -c '^data: ' "$WORK/last")" = 301 ] || lib_die "the drained stream is not whole"
n=$((n + 1))
wait $demo || lib_die "the server ended with status $?"
if curl -sS --max-time 5 "$U/health" >/dev/null 2>&1; then
    lib_die "the server still answers after its end"
fi
echo "$(tail -n 1 "$WORK/python") curl_checks=$((n + 1))"
