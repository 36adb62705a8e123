select age, count(*) as users from {{ ref('users') }} group by age
