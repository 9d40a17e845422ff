# update.awk: awk -v PREVIOUS=FILE -v LOCKS=FILE -f update.awk SCRIPT: prints the update script SCRIPT so that it can
# run beside calls.
#
# It leaves out each view and trigger that the install script PREVIOUS has with the same text: replacing it would lock
# it, or its table, for nothing. LOCKS takes the locks on the relations that the script does change, before anything
# else. These are the relations of views and triggers that differ, and those that next.sql names in alter table, alter
# view, drop table, drop view, drop trigger, drop index or create index, in the first column.
function key(text) {
    sub(/^create or replace /, "create ", text)
    return text
}

# The relation that a statement locks, as far as its first words say.
function name_after(text, word) {
    if (!match(text, word))
        return ""
    text = substr(text, RSTART + RLENGTH)
    sub(/^(if exists|only) /, "", text)
    sub(/^only /, "", text)
    sub(/[ (;].*/, "", text)
    return text
}

function lock(name, mode) {
    if (!(name in there))
        return
    if (!(name in mode_of))
        order[++locks] = name
    else if (mode_of[name] == "access exclusive")
        return
    mode_of[name] = there[name] == "view" ? "view" : mode
}

function seen_before(text,    of) {
    if (text ~ /^create (unlogged )?table /)
        there[name_after(text, "table ")] = "table"
    else if (text ~ /^create (unique )?index /) {
        of = name_after(text, " on ")
        table_of[substr(of, 1, index(of, ".")) name_after(text, " index ")] = of
    } else if (text ~ /^create view /)
        there[name_after(text, "create view ")] = "view"
    before[text] = 1
}

function changes(text,    flat) {
    flat = text
    gsub(/[ \n]+/, " ", flat)
    if (flat ~ /^create view /)
        lock(name_after(flat, "create view "), "view")
    else if (flat ~ /^create trigger /)
        lock(name_after(flat, " on "), "share row exclusive")
    else if (flat ~ /^create (unique )?index /)
        lock(name_after(flat, " on "), "share")
    else if (flat ~ /^drop index /)
        lock(table_of[name_after(flat, "^drop index ")], "access exclusive")
    else if (flat ~ /^drop trigger /)
        lock(name_after(flat, " on "), "access exclusive")
    else if (flat ~ /^(alter|drop) (table|view) /)
        lock(name_after(flat, "^(alter|drop) (table|view) "), "access exclusive")
    if (flat ~ /^drop view /)
        dropped[name_after(flat, "^drop view ")] = 1
}

function statement(text,    of) {
    text = key(text)
    if (FILENAME == PREVIOUS) {
        seen_before(text)
        return 1
    }
    of = name_after(text, "^(create|comment on) view ")
    if (text in before && !(of in dropped) && text ~ /^(create (view|trigger)|comment on view) /)
        return 0
    changes(text)
    return 1
}

BEGIN {
    ARGV[ARGC++] = ARGV[1]
    ARGV[1] = PREVIOUS
}

# Statements that are looked at begin in the first column and end with the first line that ends with a semicolon.
/^create (or replace view|or replace trigger|view|trigger|table|unlogged table|index|unique index) / ||
    /^(comment on view|alter table|alter view|drop table|drop view|drop index|drop trigger) / {
    inside = 1
    text = whole = ""
}
inside {
    whole = whole $0 "\n"
    line = $0
    sub(/ *-- .*/, "", line) # a comment at the end of a line
    text = text line "\n"
    if (line ~ /; *$/) {
        inside = 0
        if (statement(text) && FILENAME != PREVIOUS)
            out[++outs] = whole
    }
    next
}
FILENAME != PREVIOUS { out[++outs] = $0 "\n" }

END {
    # The guard and the search path come first.
    printf "%s%s", out[1], out[2]
    while (locks && (getline line < LOCKS) > 0)
        if (line ~ /WANTED/)
            for (i = 1; i <= locks; i++)
                printf "                ('%s', '%s')%s\n", order[i], mode_of[order[i]], i < locks ? "," : ""
        else
            print line
    for (i = 3; i <= outs; i++)
        printf "%s", out[i]
}
