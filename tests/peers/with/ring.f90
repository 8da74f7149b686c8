! A ring of coarrays: each image fetches from its left neighbour, and puts at its right one.
program ring
  implicit none
  integer, parameter :: words = 100000
  integer :: there(words)[*], here(words), me, all, at, left, right
  me = this_image()
  all = num_images()
  left = merge(all, me - 1, me == 1)
  right = merge(1, me + 1, me == all)
  there = [(at * 3 + me * 1000, at = 1, words)]
  sync all
  here = there(:)[left]
  if (any(here /= [(at * 3 + left * 1000, at = 1, words)])) error stop "fetched something else"
  sync all
  there(:)[right] = here
  sync all
  left = merge(all, left - 1, left == 1)
  if (any(there /= [(at * 3 + left * 1000, at = 1, words)])) error stop "something else was put"
  sync all
  if (me == 1) print "(i0, a)", all, " images, all right"
end program
