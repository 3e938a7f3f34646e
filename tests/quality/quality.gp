# Draws what build/quality wrote: gnuplot -e "recall='FILE'; text='FILE'; out='FILE.svg'" quality.gp
set terminal svg size 1180,520 font "Helvetica,13" background "#ffffff"
set output out
set datafile separator "\t"
set multiplot layout 1,2 margins 0.06,0.985,0.30,0.88 spacing 0.07
set logscale x 2
set grid ytics lc rgb "#e4e4e4" lt 1
set border 3 lc rgb "#888888"
set tics nomirror
set key at graph 0.02,-0.19 left top Left reverse maxrows 3 samplen 2 spacing 1.15 width -1 noautotitle
set xlabel "bytes of the cache"
set format x "%.0f"
row(file, task, way) = sprintf("< awk -F '\\t' '$1 == \"%s\" && $2 == \"%s\"' %s", task, way, file)

A = "the article: sum, average 5, recent 16"
R = "recent 4"
L = "recent 4, largest vote"
M = "recent 4, one budget for the model"
T = "all together: largest, maximum, model"
N = "recent 4, without pooling"
S = "sum, without pooling, model"
F = "first 4 + last"

set title "Recall: exact answers, %"
set yrange [0:104]
set title offset 0,-0.5
set xtics (8192, 16384, 32768, 65536, 131072)
plot row(recall, "end", T) u 4:5:6 w yerrorlines lw 3 pt 7 lc rgb "#000000" t "all together", \
     row(recall, "end", L) u 4:5:6 w yerrorlines lw 2 pt 7 lc rgb "#009e73" t "largest vote", \
     row(recall, "end", M) u 4:5:6 w yerrorlines lw 2 pt 7 lc rgb "#e69f00" t "one budget", \
     row(recall, "end", R) u 4:5:6 w yerrorlines lw 2 pt 7 lc rgb "#56b4e9" t "4 recent", \
     row(recall, "end", A) u 4:5:6 w yerrorlines lw 3 pt 7 lc rgb "#0072b2" t "the article", \
     row(recall, "end", N) u 4:5:6 w yerrorlines lw 2 pt 7 lc rgb "#d55e00" t "no pooling", \
     row(recall, "end", F) u 4:5:6 w yerrorlines lw 2 pt 7 lc rgb "#999999" t "first 4 + last"

set title "Text: divergence from the full cache x 1000"
set logscale y
set yrange [5:350]
set ytics (5, 10, 20, 50, 100, 200)
set xtics (16384, 32768, 65536, 131072, 262144)
plot row(text, "text", S) u 4:5:6 w yerrorlines lw 3 pt 7 lc rgb "#cc79a7" t "no pooling, one budget", \
     row(text, "text", N) u 4:5:6 w yerrorlines lw 2 pt 7 lc rgb "#d55e00" t "no pooling", \
     row(text, "text", M) u 4:5:6 w yerrorlines lw 2 pt 7 lc rgb "#e69f00" t "one budget", \
     row(text, "text", A) u 4:5:6 w yerrorlines lw 3 pt 7 lc rgb "#0072b2" t "the article", \
     row(text, "text", T) u 4:5:6 w yerrorlines lw 3 pt 7 lc rgb "#000000" t "all together", \
     row(text, "text", F) u 4:5:6 w yerrorlines lw 2 pt 7 lc rgb "#999999" t "first 4 + last"
unset multiplot
