# Completion of weft in bash: verbs, options and keys of the config, as the program itself lists them.
_weft() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} weft=${COMP_WORDS[0]}
    local verb=() takes= words
    # bash cuts words at "=".
    [[ $cur == = ]] && cur=
    [[ $prev == = && $COMP_CWORD -gt 1 ]] && prev=${COMP_WORDS[COMP_CWORD - 2]}
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [[ ${#verb[@]} -lt 2 && $word =~ ^[a-z] ]] || break
        verb+=("$word")
    done
    local at=$COMP_CWORD
    [[ ${COMP_WORDS[at]} == = ]] || ((at--))
    if [[ ${COMP_WORDS[at]} == = && ${COMP_WORDS[at - 2]} =~ ^(--set|=)$ ]]; then
        words=$("$weft" config --explain "${COMP_WORDS[at - 1]}" 2>/dev/null |
            sed -n 's/^ *accepts  *true or false$/true false/p; s/^ *accepts  *\([^ ]*|[^ ]*\)$/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "${words//|/ }" -- "$cur")
        return
    fi
    [[ ${#verb[@]} -eq 2 && ${verb[0]} != bench && ${verb[0]} != plan ]] && unset 'verb[1]'
    words=$("$weft" "${verb[@]}" --help=words 2>/dev/null) ||
        words=$("$weft" "${verb[0]}" --help=words 2>/dev/null) || return
    [[ $prev == --* ]] && takes=$(awk -F '\t' -v w="$prev" '$1 == w { print $2 }' <<<"$words")
    case $takes in
    '') ;;
    KEY)
        mapfile -t COMPREPLY < <(compgen -W "$("$weft" config)" -- "$cur")
        return
        ;;
    KEY*)
        mapfile -t COMPREPLY < <(compgen -S = -W "$("$weft" config)" -- "$cur")
        compopt -o nospace
        return
        ;;
    *'|'*)
        mapfile -t COMPREPLY < <(compgen -W "${takes//|/ }" -- "$cur")
        return
        ;;
    *)
        # A file, or a value that nobody can list.
        [[ ! $takes =~ ^(FILE|FOLDER|DIR|RUN|PREFIX|CONFIG|CLUSTER|PROGRAM|IMAGE)$ ]] ||
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$(cut -f 1 <<<"$words")" -- "$cur")
    [[ $cur == -* || ${#verb[@]} -eq 0 ]] || mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$cur")
}
complete -o filenames -F _weft weft
