#!/usr/bin/env bash
# Opens pages in headless Chromium, 360 and 1,400 pixels wide, light and dark: no error, no request,
# no sideways scrolling; buttons and keys zoom the timeline.
#   page.sh WEFT TEST_PAGE CLUSTER [FOLDER]      FOLDER: for pictures of the pages
set -euo pipefail
weft=$(realpath "$1") sample=$(realpath "$2") cluster=$(realpath "$3") pictures=${4:-}
browser=
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && browser=$name && break
done
[ -n "$browser" ] || { echo "no Chromium is installed: the pages are not opened" && exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >config.json <<END
{"model": {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 4096,
  "vocab_size": 128256, "num_experts": 8},
 "train": {"global_batch_size": 64, "precision": "bf16"}, "data": {"mock_data": true}}
END
"$weft" plan config.json --cluster "$cluster" --mesh tp=2,pp=4,dp=8,ep=8 --html plan.html >/dev/null ||
    [ $? -eq 3 ]
"$sample" sample sample.html

# Notes what goes wrong and what is asked for; uses the timeline; says it all in an attribute.
watch='<script>(function(){var wrong=[];
addEventListener("error",function(e){wrong.push(e.message);});
addEventListener("securitypolicyviolation",function(e){wrong.push("asked for "+e.blockedURI);});
addEventListener("load",function(){
  var root=document.documentElement,box=document.querySelector(".box"),zoomed="none";
  if(box){
    var svg=box.querySelector("svg"),views=[svg.getAttribute("viewBox")];
    var press=function(k){box.dispatchEvent(new KeyboardEvent("keydown",{key:k}));
      views.push(svg.getAttribute("viewBox"));};
    ["+","+","ArrowRight","-","0"].forEach(press);
    var last=views.length-1;
    zoomed=views[1]!==views[0]&&views[2]!==views[1]&&views[3]!==views[2]&&views[last]===views[0];
    document.querySelectorAll("button").forEach(function(b){b.click();});
    zoomed=zoomed&&svg.getAttribute("viewBox")===views[0];
    box.dispatchEvent(new WheelEvent("wheel",{deltaY:-1,ctrlKey:true,cancelable:true}));
    zoomed=zoomed&&svg.getAttribute("viewBox")!==views[0];
  }
  parent.postMessage("wrong="+wrong.length+" asked="+performance.getEntriesByType("resource").length+
    " wide="+(root.scrollWidth>innerWidth)+" width="+innerWidth+
    " dark="+matchMedia("(prefers-color-scheme: dark)").matches+" zoomed="+zoomed+" "+wrong,"*");
});})();</script>'
# A window is never narrower than 500 pixels: the page stands in a frame of the width.
frame() { # WIDTH PAGE
    echo "<!doctype html><style>body{margin:0}iframe{border:0;width:$1px;height:2600px}</style>
<script>addEventListener(\"message\",function(e){document.documentElement.dataset.seen=e.data;});
</script><iframe src=\"$2\"></iframe>"
}

failed=0
for page in plan sample; do
    { sed '/<meta charset/q' $page.html && echo "$watch" && sed '1,/<meta charset/d' $page.html; } >watched.html
    for width in 360 1400; do
        for dark in false true; do
            scheme=1
            [ $dark = true ] && scheme=0
            frame $width watched.html >frame.html
            frame $width $page.html >picture.html
            options=(--headless --no-sandbox --disable-gpu --disable-background-networking
                --no-first-run --user-data-dir="$folder/profile" --hide-scrollbars
                --blink-settings=preferredColorScheme=$scheme --window-size=$((width < 500 ? 500 : width)),2600)
            "$browser" "${options[@]}" --enable-logging=stderr --virtual-time-budget=3000 \
                --dump-dom "file://$folder/frame.html" >dom 2>log || { cat log >&2 && exit 1; }
            seen=$(grep -o 'data-seen="[^"]*"' dom | head -1)
            zoomed=none
            [ $page = plan ] && zoomed=true
            wanted="wrong=0 asked=0 wide=false width=$width dark=$dark zoomed=$zoomed "
            if [ "$seen" != "data-seen=\"$wanted\"" ] || grep -q CONSOLE log; then
                echo "$page, $width pixels, dark $dark: not \"$wanted\": $seen" >&2
                grep CONSOLE log >&2 || true
                failed=1
            fi
            [ -z "$pictures" ] || "$browser" "${options[@]}" \
                --screenshot="$pictures/$page-$width-$dark.png" "file://$folder/picture.html" 2>/dev/null
        done
    done
done
[ $failed -eq 0 ] && echo "every page opens as it should in $("$browser" --version 2>/dev/null)"
exit $failed
